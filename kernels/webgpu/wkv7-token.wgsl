// A token's arithmetic by N threads, one per channel of a head.
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
var<workgroup> raw: array<f32, N>;
var<workgroup> shared_bonus: array<f32, N>;
var<workgroup> shared_y: array<f32, N>;

fn key_of(k: f32, a: f32, k_a: f32) -> f32 { return k * fma(a - 1.0, k_a, 1.0); }
fn decay_of(w: f32) -> f32 { return exp(-MAX_DECAY * sigmoid(w)); }

/** Of raw. */
fn length_of_raw() -> f32 {
  var squares = vec4f();
  for (var q = 0u; q < N; q += 4u) {
    let k4 = vec4f(raw[q], raw[q + 1u], raw[q + 2u], raw[q + 3u]);
    squares = fma(k4, k4, squares);
  }
  return max(sqrt(sum4(squares)), 1e-12);
}

/** From the outputs and bonuses in shared memory. */
fn gated(y: f32, v: f32, g: f32, gain: f32, bias: f32) -> f32 {
  var total = vec4f();
  var bonus4 = vec4f();
  for (var q = 0u; q < N; q += 4u) {
    total += vec4f(shared_y[q], shared_y[q + 1u], shared_y[q + 2u], shared_y[q + 3u]);
    bonus4 += vec4f(shared_bonus[q], shared_bonus[q + 1u], shared_bonus[q + 2u], shared_bonus[q + 3u]);
  }
  let mean = sum4(total) / f32(N);
  var variance = vec4f();
  for (var q = 0u; q < N; q += 4u) {
    let d = vec4f(shared_y[q], shared_y[q + 1u], shared_y[q + 2u], shared_y[q + 3u]) - mean;
    variance = fma(d, d, variance);
  }
  let normed = (y - mean) / sqrt(sum4(variance) / f32(N) + p.eps);
  return fma(sum4(bonus4), v, fma(normed, gain, bias)) * g;
}
