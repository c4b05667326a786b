// RWKV-7 time mixing. One workgroup per head of a row, PARTS threads per value channel, which keep its row of the state
// during all tokens of the row. N4 of them do what is to do for each channel, four at a time.
#include "wkv7-params.wgsl"
const HELD = N4;
#include "wkv7-fours.wgsl"
#include STATE
fn kept_at(i: u32) -> u32 { return p.kept; }
#include KEPT
const THREADS = N * PARTS;
#include ROW_PARTS
var<workgroup> shared_r: array<vec4f, N4>;
var<workgroup> shared_w: array<vec4f, N4>;
var<workgroup> shared_k: array<vec4f, N4>;
var<workgroup> shared_kk: array<vec4f, N4>;
var<workgroup> shared_b: array<vec4f, N4>;
var<workgroup> shared_v: array<vec4f, N4>;
var<workgroup> shared_y: array<f32, N>;

struct Token {
  r: vec4f,
  k: vec4f,
  v: vec4f,
  w: vec4f,
  a: vec4f,
  g: vec4f,
  v_gate: vec4f,
  v_first: vec4f,
}

fn load_token(at: u32) -> Token {
  var token: Token;
  token.r = arena[p.r / 4u + at];
  token.k = arena[p.k / 4u + at];
  token.v = arena[p.v / 4u + at];
  token.w = arena[p.w / 4u + at];
  token.a = arena[p.a / 4u + at];
  token.g = arena[p.g / 4u + at];
  if (p.has_gate == 1u) {
    token.v_gate = arena[p.v_gate / 4u + at];
    token.v_first = arena[p.v_first / 4u + at];
  }
  return token;
}

struct Weights {
  k_k: vec4f,
  k_a: vec4f,
  r_k: vec4f,
  gain: vec4f,
  bias: vec4f,
}

fn load_weights(c: u32) -> Weights {
  return Weights(arena[p.k_k / 4u + c], arena[p.k_a / 4u + c], arena[p.r_k / 4u + c], arena[p.gain / 4u + c], arena[p.bias / 4u + c]);
}

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let own_thread = own_index(thread);
  let i = own_thread / PARTS;
  let part = own_thread % PARTS;
  let head = group.x;
  let row = group.y;
  let state = state_at(min(row_slot(row), p.slots), head * N + i);
  var s = load_state(state, part);
  let end = row_end(row);
  let is_of_channels = own_thread < N4;
  let c = head * N4 + own_thread;
  let fours_of_token = p.channels / 4u;
  var next: Token;
  var weights: Weights;
  if (is_of_channels) {
    next = load_token(row_start(row) * fours_of_token + c);
    weights = load_weights(c);
  }
  for (var t = row_start(row); t < end; t++) {
    let at = t * fours_of_token + c;
    let own = next;
    let raw = own.k * weights.k_k;
    if (is_of_channels) {
      // The next token's numbers are loaded while this one is computed.
      next = load_token(min(t + 1u, end - 1u) * fours_of_token + c);
      fours[own_thread] = raw;
    }
    workgroupBarrier();
    if (is_of_channels) {
      let k = key_of(own.k, own.a, weights.k_a);
      let kk = raw / length_of_fours(0u);
      var v = own.v;
      if (p.has_gate == 1u) { v = fma(own.v_first - v, own.v_gate, v); } else { arena[p.v_first / 4u + at] = v; }
      shared_r[own_thread] = own.r;
      shared_w[own_thread] = decay_of(own.w);
      shared_k[own_thread] = k;
      shared_kk[own_thread] = kk;
      shared_b[own_thread] = kk * own.a;
      shared_v[own_thread] = v;
      others[own_thread] = own.r * k * weights.r_k;
    }
    workgroupBarrier();
    var sa4 = vec4f();
#repeat j EACH
    sa4 = fma(s[$j], shared_kk[vector_of($ju, part)], sa4);
#end j
    let sa = sum_of_row(sum4(sa4));
    let v = shared_v[i / 4u][i % 4u];
    let noise = noise_of(v, shared_k[0].x, head * N + i);
    var y = vec4f();
#repeat j EACH
    {
      let q = vector_of($ju, part);
      s[$j] = fma(vec4f(v), shared_k[q], fma(vec4f(-sa), shared_b[q], s[$j] * shared_w[q]));
      y = fma(s[$j], shared_r[q], y);
      s[$j] = kept(s[$j], noise, 4u * q);
    }
#end j
    let sum = sum_of_row(sum4(y));
    if (part == 0u) { shared_y[i] = sum; }
    workgroupBarrier();
    let first = 4u * own_thread % N;
    let own_y = vec4f(shared_y[first], shared_y[first + 1u], shared_y[first + 2u], shared_y[first + 3u]);
    if (is_of_channels) { fours[own_thread] = own_y; }
    workgroupBarrier();
    if (is_of_channels) {
      let result = gated(0u, own_y, shared_v[own_thread], own.g, weights.gain, weights.bias);
      arena[p.out / 4u + at] = result;
      keep_four(0u, p.kept, p.channels, t, 4u * c, result);
    }
    keep_all(p.channels, t, 0u, head * N, (head + 1u) * N, own_thread);
    // Before the next token's numbers take the place of these.
    workgroupBarrier();
  }
  store_state(state, part, s);
}
