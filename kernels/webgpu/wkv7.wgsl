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

struct Token {
  r: f32,
  k: f32,
  v: f32,
  w: f32,
  a: f32,
  g: f32,
  v_gate: f32,
  v_first: f32,
}

fn load_token(at: u32) -> Token {
  var token = Token(arena[p.r + at], arena[p.k + at], arena[p.v + at], arena[p.w + at], arena[p.a + at], arena[p.g + at], 0.0, 0.0);
  if (p.has_gate == 1u) {
    token.v_gate = arena[p.v_gate + at];
    token.v_first = arena[p.v_first + at];
  }
  return token;
}

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
  var next = load_token(row_start(row) * p.channels + c);
  for (var t = row_start(row); t < end; t++) {
    let at = t * p.channels + c;
    // The next token's numbers are on their way while this one is computed.
    let own = next;
    next = load_token(min(t + 1u, end - 1u) * p.channels + c);
    let a = own.a;
    let r = own.r;
    let k_in = own.k;
    let k = k_in * (1.0 + (a - 1.0) * k_a);
    var v = own.v;
    if (p.has_gate == 1u) {
      v += (own.v_first - v) * own.v_gate;
    } else {
      arena[p.v_first + at] = v;
    }
    raw[i] = k_in * k_k;
    workgroupBarrier();
    var squares = vec4f();
    for (var j = 0u; j < N4; j++) {
      let q = 4u * j;
      let k4 = vec4f(raw[q], raw[q + 1u], raw[q + 2u], raw[q + 3u]);
      squares = fma(k4, k4, squares);
    }
    let kk = raw[i] / max(sqrt(sum4(squares)), 1e-12);
    shared_r[i] = r;
    shared_w[i] = exp(-MAX_DECAY * sigmoid(own.w));
    shared_k[i] = k;
    shared_kk[i] = kk;
    shared_b[i] = kk * a;
    shared_bonus[i] = r * k * r_k;
    workgroupBarrier();
    var sa4 = vec4f();
#repeat j N4
    {
      let q = 4u * $ju;
      sa4 = fma(s[$j], vec4f(shared_kk[q], shared_kk[q + 1u], shared_kk[q + 2u], shared_kk[q + 3u]), sa4);
    }
#end j
    let sa = sum4(sa4);
    var y = vec4f();
#repeat j N4
    {
      let q = 4u * $ju;
      let w = vec4f(shared_w[q], shared_w[q + 1u], shared_w[q + 2u], shared_w[q + 3u]);
      let b = vec4f(shared_b[q], shared_b[q + 1u], shared_b[q + 2u], shared_b[q + 3u]);
      let key = vec4f(shared_k[q], shared_k[q + 1u], shared_k[q + 2u], shared_k[q + 3u]);
      let query = vec4f(shared_r[q], shared_r[q + 1u], shared_r[q + 2u], shared_r[q + 3u]);
      s[$j] = fma(vec4f(v), key, fma(vec4f(-sa), b, s[$j] * w));
      y = fma(s[$j], query, y);
    }
#end j
    shared_y[i] = sum4(y);
    workgroupBarrier();
    var total = vec4f();
    var bonus4 = vec4f();
    for (var j = 0u; j < N4; j++) {
      let q = 4u * j;
      total += vec4f(shared_y[q], shared_y[q + 1u], shared_y[q + 2u], shared_y[q + 3u]);
      bonus4 += vec4f(shared_bonus[q], shared_bonus[q + 1u], shared_bonus[q + 2u], shared_bonus[q + 3u]);
    }
    let bonus = sum4(bonus4);
    let mean = sum4(total) / f32(N);
    var variance = vec4f();
    for (var j = 0u; j < N4; j++) {
      let q = 4u * j;
      let d = vec4f(shared_y[q], shared_y[q + 1u], shared_y[q + 2u], shared_y[q + 3u]) - mean;
      variance = fma(d, d, variance);
    }
    let normed = (shared_y[i] - mean) / sqrt(sum4(variance) / f32(N) + p.eps);
    arena[p.out + at] = (normed * gain + bias + bonus * v) * own.g;
  }
  store_state(state, s);
}
