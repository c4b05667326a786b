// A token's arithmetic by N threads, one per channel of a head.
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
var<workgroup> raw: array<f32, N>;
var<workgroup> shared_bonus: array<f32, N>;
var<workgroup> shared_y: array<f32, N>;

fn key_of(k: f32, a: f32, k_a: f32) -> f32 { return k * fma(a - 1.0, k_a, 1.0); }
fn decay_of(w: f32) -> f32 { return exp(-MAX_DECAY * sigmoid(w)); }

/** Sums over every fourth channel of a head; each by one thread, as all need them. */
var<workgroup> fours: array<f32, 12>;

fn sum_of_fours(first: u32) -> f32 { return sum4(vec4f(fours[first], fours[first + 1u], fours[first + 2u], fours[first + 3u])); }

/** Of raw, which all have written; `thread` counts over the workgroup. */
fn length_of_raw(thread: u32) -> f32 {
  if (thread < 4u) {
    var squares = 0.0;
    for (var q = 0u; q < N; q += 4u) { squares = fma(raw[q + thread], raw[q + thread], squares); }
    fours[thread] = squares;
  }
  workgroupBarrier();
  return max(sqrt(sum_of_fours(0u)), 1e-12);
}

/** From the outputs and bonuses that all have written to shared memory. */
fn gated(thread: u32, y: f32, v: f32, g: f32, gain: f32, bias: f32) -> f32 {
  let four = thread % 4u;
  if (thread < 8u) {
    var total = 0.0;
    for (var q = 0u; q < N; q += 4u) { total += select(shared_bonus[q + four], shared_y[q + four], thread < 4u); }
    fours[thread] = total;
  }
  workgroupBarrier();
  let mean = sum_of_fours(0u) / f32(N);
  if (thread < 4u) {
    var variance = 0.0;
    for (var q = 0u; q < N; q += 4u) {
      let d = shared_y[q + four] - mean;
      variance = fma(d, d, variance);
    }
    fours[8u + thread] = variance;
  }
  workgroupBarrier();
  let normed = (y - mean) / sqrt(sum_of_fours(8u) / f32(N) + p.eps);
  return fma(sum_of_fours(4u), v, fma(normed, gain, bias)) * g;
}
