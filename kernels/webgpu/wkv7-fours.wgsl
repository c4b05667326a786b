// A token's arithmetic by N4 threads of each head, four channels each; HELD threads of a workgroup do it. Each makes the sums
// over its head itself: none waits for another twice.
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
var<workgroup> fours: array<vec4f, HELD>;
var<workgroup> others: array<vec4f, HELD>;

fn key_of(k: vec4f, a: vec4f, k_a: vec4f) -> vec4f { return k * fma(a - 1.0, k_a, vec4f(1.0)); }
fn decay_of(w: vec4f) -> vec4f {
  return exp(-MAX_DECAY * vec4f(sigmoid(w.x), sigmoid(w.y), sigmoid(w.z), sigmoid(w.w)));
}

/** Of a head, whose vectors in shared memory begin at `first`. */
fn length_of_fours(first: u32) -> f32 {
  var squares = vec4f();
#repeat q N4
  let four$q = fours[first + $qu];
  squares = fma(four$q, four$q, squares);
#end q
  return max(sqrt(sum4(squares)), 1e-12);
}

/** Outputs are in `fours`, the bonus of the token in `others`. */
fn gated(first: u32, y: vec4f, v: vec4f, g: vec4f, gain: vec4f, bias: vec4f) -> vec4f {
  var total = vec4f();
  var bonus = vec4f();
#repeat q N4
  let y$q = fours[first + $qu];
  total += y$q;
  bonus += others[first + $qu];
#end q
  let mean = sum4(total) / f32(N);
  var variance = vec4f();
#repeat q N4
  variance = fma(y$q - mean, y$q - mean, variance);
#end q
  let normed = (y - mean) / sqrt(sum4(variance) / f32(N) + p.eps);
  return fma(vec4f(sum4(bonus)), v, fma(normed, gain, bias)) * g;
}
