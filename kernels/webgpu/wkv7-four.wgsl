// A token's arithmetic, four channels at a time.
fn key_of(k: vec4f, a: vec4f, k_a: vec4f) -> vec4f { return k * fma(a - 1.0, k_a, vec4f(1.0)); }
fn decay_of(w: vec4f) -> vec4f {
  return exp(-MAX_DECAY * vec4f(sigmoid(w.x), sigmoid(w.y), sigmoid(w.z), sigmoid(w.w)));
}
