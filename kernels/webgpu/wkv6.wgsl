// RWKV-6 time mixing. One workgroup per head of a row, one thread per value channel, as in wkv7.wgsl.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  out: u32,
  r: u32,
  k: u32,
  v: u32,
  w: u32,
  g: u32,
  u: u32,
  gain: u32,
  bias: u32,
  eps: f32,
  channels: u32,
  wkv: u32, // within a slot
  slot_size: u32,
  slots: u32,
  pad0: u32,
  pad1: u32,
}
@group(1) @binding(0) var<uniform> p: Params;
#include STATE
#include "math.wgsl"

var<workgroup> shared_r: array<f32, N>;
var<workgroup> shared_w: array<f32, N>;
var<workgroup> shared_k: array<f32, N>;
var<workgroup> shared_bonus: array<f32, N>;
var<workgroup> shared_y: array<f32, N>;

/** exp(−exp(x)); beyond 80 the inner one would overflow. */
fn decay(x: f32) -> f32 {
  return select(select(exp(-exp(x)), 0.0, x > 80.0), x, is_nan(x));
}

@compute @workgroup_size(N)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) i: u32) {
  let head = group.x;
  let row = group.y;
  let slot = min(row_slot(row), p.slots);
  let state = state_at(slot, head * N + i);
  let c = head * N + i;
  let u = arena[p.u + c];
  let gain = arena[p.gain + c];
  let bias = arena[p.bias + c];
  var s = load_state(state, 0u);
  let end = row_end(row);
  for (var t = row_start(row); t < end; t++) {
    let at = t * p.channels + c;
    let r = arena[p.r + at];
    let k = arena[p.k + at];
    let v = arena[p.v + at];
    shared_r[i] = r;
    shared_k[i] = k;
    shared_w[i] = decay(arena[p.w + at]);
    shared_bonus[i] = r * u * k;
    workgroupBarrier();
    let noise = noise_of(v, shared_k[0], c);
    var bonus = vec4f();
    var y = vec4f();
#repeat j N4
    {
      let q = 4u * $ju;
      bonus += vec4f(shared_bonus[q], shared_bonus[q + 1u], shared_bonus[q + 2u], shared_bonus[q + 3u]);
      let w = vec4f(shared_w[q], shared_w[q + 1u], shared_w[q + 2u], shared_w[q + 3u]);
      let key = vec4f(shared_k[q], shared_k[q + 1u], shared_k[q + 2u], shared_k[q + 3u]);
      let query = vec4f(shared_r[q], shared_r[q + 1u], shared_r[q + 2u], shared_r[q + 3u]);
      y = fma(s[$j], query, y);
      s[$j] = kept(fma(vec4f(v), key, s[$j] * w), noise, $ju);
    }
#end j
    shared_y[i] = fma(sum4(bonus), v, sum4(y));
    workgroupBarrier();
    var total = vec4f();
    for (var j = 0u; j < N4; j++) {
      let q = 4u * j;
      total += vec4f(shared_y[q], shared_y[q + 1u], shared_y[q + 2u], shared_y[q + 3u]);
    }
    let mean = sum4(total) / f32(N);
    var variance = vec4f();
    for (var j = 0u; j < N4; j++) {
      let q = 4u * j;
      let d = vec4f(shared_y[q], shared_y[q + 1u], shared_y[q + 2u], shared_y[q + 3u]) - mean;
      variance = fma(d, d, variance);
    }
    let normed = (shared_y[i] - mean) / sqrt(sum4(variance) / f32(N) + p.eps);
    let g = arena[p.g + at];
    arena[p.out + at] = (normed * gain + bias) * g * sigmoid(g);
  }
  store_state(state, 0u, s);
}
