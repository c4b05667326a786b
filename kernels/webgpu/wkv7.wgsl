// RWKV-7 time mixing. One workgroup a head of a row, one thread a value channel, which keeps its row of the state while
// the tokens of the row go by.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  out: u32,
  r: u32,
  k: u32,
  v: u32,
  w: u32,
  a: u32,
  g: u32,
  v_gate: u32,
  v_first: u32,
  k_k: u32,
  k_a: u32,
  r_k: u32,
  gain: u32,
  bias: u32,
  eps: f32,
  channels: u32,
  wkv: u32, // within a slot
  slot_size: u32,
  slots: u32,
  has_gate: u32,
}
@group(1) @binding(0) var<uniform> p: Params;
#include "wkv-state.wgsl"
#include "math.wgsl"

const MAX_DECAY = 0.6065306597126334; // e^(−½)
var<workgroup> raw: array<f32, N>;
var<workgroup> shared_r: array<f32, N>;
var<workgroup> shared_w: array<f32, N>;
var<workgroup> shared_k: array<f32, N>;
var<workgroup> shared_kk: array<f32, N>;
var<workgroup> shared_b: array<f32, N>;
var<workgroup> shared_bonus: array<f32, N>;
var<workgroup> shared_y: array<f32, N>;

@compute @workgroup_size(N)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) i: u32) {
  let head = group.x;
  let row = group.y;
  let slot = min(row_slot(row), p.slots);
  let state = (slot * p.slot_size + p.wkv + (head * N + i) * N) / 4u;
  let c = head * N + i;
  let k_k = arena[p.k_k + c];
  let k_a = arena[p.k_a + c];
  let r_k = arena[p.r_k + c];
  let gain = arena[p.gain + c];
  let bias = arena[p.bias + c];
  var s = load_state(state);
  let end = row_start(row + 1u);
  for (var t = row_start(row); t < end; t++) {
    let at = t * p.channels + c;
    let r = arena[p.r + at];
    let a = arena[p.a + at];
    let k_in = arena[p.k + at];
    let k = k_in * (1.0 + (a - 1.0) * k_a);
    var v = arena[p.v + at];
    if (p.has_gate == 1u) {
      v += (arena[p.v_first + at] - v) * arena[p.v_gate + at];
    } else {
      arena[p.v_first + at] = v;
    }
    raw[i] = k_in * k_k;
    workgroupBarrier();
    var squares = 0.0;
    for (var j = 0u; j < N; j++) { squares = fma(raw[j], raw[j], squares); }
    let kk = raw[i] / max(sqrt(squares), 1e-12);
    shared_r[i] = r;
    shared_w[i] = exp(-MAX_DECAY * sigmoid(arena[p.w + at]));
    shared_k[i] = k;
    shared_kk[i] = kk;
    shared_b[i] = kk * a;
    shared_bonus[i] = r * k * r_k;
    workgroupBarrier();
    var sa = 0.0;
    for (var j = 0u; j < N4; j++) {
      let q = 4u * j;
      sa = fma(s[j].x, shared_kk[q], sa);
      sa = fma(s[j].y, shared_kk[q + 1u], sa);
      sa = fma(s[j].z, shared_kk[q + 2u], sa);
      sa = fma(s[j].w, shared_kk[q + 3u], sa);
    }
    var y = vec4f();
    for (var j = 0u; j < N4; j++) {
      let q = 4u * j;
      let w = vec4f(shared_w[q], shared_w[q + 1u], shared_w[q + 2u], shared_w[q + 3u]);
      let b = vec4f(shared_b[q], shared_b[q + 1u], shared_b[q + 2u], shared_b[q + 3u]);
      let key = vec4f(shared_k[q], shared_k[q + 1u], shared_k[q + 2u], shared_k[q + 3u]);
      let query = vec4f(shared_r[q], shared_r[q + 1u], shared_r[q + 2u], shared_r[q + 3u]);
      s[j] = fma(vec4f(v), key, fma(vec4f(-sa), b, s[j] * w));
      y = fma(s[j], query, y);
    }
    shared_y[i] = (y.x + y.y) + (y.z + y.w);
    workgroupBarrier();
    var sum = 0.0;
    var bonus = 0.0;
    for (var j = 0u; j < N; j++) {
      sum += shared_y[j];
      bonus += shared_bonus[j];
    }
    let mean = sum / f32(N);
    var variance = 0.0;
    for (var j = 0u; j < N; j++) {
      let d = shared_y[j] - mean;
      variance = fma(d, d, variance);
    }
    let normed = (shared_y[i] - mean) / sqrt(variance / f32(N) + p.eps);
    arena[p.out + at] = (normed * gain + bias + bonus * v) * arena[p.g + at];
  }
  store_state(state, s);
}
