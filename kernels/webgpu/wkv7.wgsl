// RWKV-7 time mixing. One workgroup per head of a row, PARTS threads per value channel, which keep its row of the state
// during all tokens of the row.
#include "wkv7-params.wgsl"
#include "wkv7-token.wgsl"
#include STATE
fn kept_at(i: u32) -> u32 { return p.kept; }
#include KEPT
const THREADS = N * PARTS;
#include ROW_PARTS
var<workgroup> shared_r: array<f32, N>;
var<workgroup> shared_w: array<f32, N>;
var<workgroup> shared_k: array<f32, N>;
var<workgroup> shared_kk: array<f32, N>;
var<workgroup> shared_b: array<f32, N>;

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

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let own_thread = own_index(thread);
  let i = own_thread / PARTS;
  let part = own_thread % PARTS;
  let head = group.x;
  let row = group.y;
  let slot = min(row_slot(row), p.slots);
  let state = state_at(slot, head * N + i);
  let c = head * N + i;
  let k_k = arena[p.k_k + c];
  let k_a = arena[p.k_a + c];
  let r_k = arena[p.r_k + c];
  let gain = arena[p.gain + c];
  let bias = arena[p.bias + c];
  var s = load_state(state, part);
  let end = row_end(row);
  var next = load_token(row_start(row) * p.channels + c);
  for (var t = row_start(row); t < end; t++) {
    let at = t * p.channels + c;
    // The next token's numbers are loaded while this one is computed.
    let own = next;
    next = load_token(min(t + 1u, end - 1u) * p.channels + c);
    let a = own.a;
    let r = own.r;
    let k_in = own.k;
    let k = key_of(k_in, a, k_a);
    var v = own.v;
    if (p.has_gate == 1u) {
      v = fma(own.v_first - v, own.v_gate, v);
    } else if (part == 0u) {
      arena[p.v_first + at] = v;
    }
    if (part == 0u) { raw[i] = k_in * k_k; }
    workgroupBarrier();
    let kk = raw[i] / length_of_raw(own_thread);
    if (part == 0u) {
      shared_r[i] = r;
      shared_w[i] = decay_of(own.w);
      shared_k[i] = k;
      shared_kk[i] = kk;
      shared_b[i] = kk * a;
      shared_bonus[i] = r * k * r_k;
    }
    workgroupBarrier();
    var sums = array<vec4f, SHARES>();
#repeat j EACH
    {
      let q = 4u * vector_of($ju, part);
      let kk4 = vec4f(shared_kk[q], shared_kk[q + 1u], shared_kk[q + 2u], shared_kk[q + 3u]);
      sums[$ju / TOGETHER % SHARES] = fma(s[$j], kk4, sums[$ju / TOGETHER % SHARES]);
    }
#end j
    let sa = sum_of_row(sums);
    let noise = noise_of(v, shared_k[0], c);
    var y = array<vec4f, SHARES>();
#repeat j EACH
    {
      let q = 4u * vector_of($ju, part);
      let w = vec4f(shared_w[q], shared_w[q + 1u], shared_w[q + 2u], shared_w[q + 3u]);
      let b = vec4f(shared_b[q], shared_b[q + 1u], shared_b[q + 2u], shared_b[q + 3u]);
      let key = vec4f(shared_k[q], shared_k[q + 1u], shared_k[q + 2u], shared_k[q + 3u]);
      let query = vec4f(shared_r[q], shared_r[q + 1u], shared_r[q + 2u], shared_r[q + 3u]);
      s[$j] = fma(vec4f(v), key, fma(vec4f(-sa), b, s[$j] * w));
      y[$ju / TOGETHER % SHARES] = fma(s[$j], query, y[$ju / TOGETHER % SHARES]);
      s[$j] = kept(s[$j], noise, q);
    }
#end j
    let sum = sum_of_row(y);
    if (part == 0u) { shared_y[i] = sum; }
    workgroupBarrier();
    let result = gated(own_thread, sum, v, own.g, gain, bias);
    if (part == 0u) { arena[p.out + at] = result; }
    if (IS_KEPT) {
      // Nobody reads the bonuses any more.
      if (part == 0u) { shared_bonus[i] = result; }
      workgroupBarrier();
      let q = 4u * own_thread;
      if (q < N) {
        let four = vec4f(shared_bonus[q], shared_bonus[q + 1u], shared_bonus[q + 2u], shared_bonus[q + 3u]);
        keep_four(0u, p.kept, p.channels, t, head * N + q, four);
      }
      keep_all(p.channels, t, 0u, head * N, (head + 1u) * N, own_thread);
    }
  }
  store_state(state, part, s);
}
