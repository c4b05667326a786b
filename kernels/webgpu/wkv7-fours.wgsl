// A token's arithmetic by N4 threads of each head, four channels each; a workgroup has HEADS of the step's heads. The sums are
// those of wkv7-token.wgsl, but each thread makes them itself: none waits for another twice.
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
const THREADS = HEADS * N4;
var<workgroup> fours: array<vec4f, THREADS>;
var<workgroup> others: array<vec4f, THREADS>;

fn key_of(k: vec4f, a: vec4f, k_a: vec4f) -> vec4f { return k * fma(a - 1.0, k_a, vec4f(1.0)); }
fn decay_of(w: vec4f) -> vec4f {
  return exp(-MAX_DECAY * vec4f(sigmoid(w.x), sigmoid(w.y), sigmoid(w.z), sigmoid(w.w)));
}
