// wkv7.wgsl of many rows, which is bound by memory: a workgroup of fewer threads, of EACH_ROWS value rows each, reads shared memory
// in vectors and less often.
#include "wkv7-params.wgsl"
#include "wkv7-four.wgsl"
#include STATE
#include KEPT
#include ROW_PARTS
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
const THREADS = N * PARTS / EACH_ROWS;
const STEP = N / EACH_ROWS;
/** Of a token, [N4] each: query, decay, key, kk, b, then value, bonus, output. */
var<workgroup> query: array<vec4f, N4>;
var<workgroup> decay: array<vec4f, N4>;
var<workgroup> keys: array<vec4f, N4>;
var<workgroup> kks: array<vec4f, N4>;
var<workgroup> bs: array<vec4f, N4>;
var<workgroup> values: array<vec4f, N4>;
var<workgroup> bonuses: array<vec4f, N4>;
var<workgroup> outputs: array<f32, N>;

fn output_at(q: u32) -> vec4f { return vec4f(outputs[4u * q], outputs[4u * q + 1u], outputs[4u * q + 2u], outputs[4u * q + 3u]); }

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let own = own_index(thread) % THREADS;
  let part = own % PARTS;
  let head = group.x;
  let row = group.y;
  let slot = min(row_slot(row), p.slots);
  let fours = p.channels / 4u;
#repeat i EACH_ROWS
  let row$i = own / PARTS + $iu * STEP;
  var s$i = load_state(state_at(slot, head * N + row$i), part);
#end i
  let is_four = own < N4;
  let four = own % N4;
  let c = head * N4 + four;
  let end = row_end(row);
  for (var t = row_start(row); t < end; t++) {
    let at = t * fours + c;
    var k = vec4f();
    var r = vec4f();
    var v = vec4f();
    var w = vec4f();
    var a = vec4f();
    if (is_four) {
      k = arena[p.k / 4u + at];
      r = arena[p.r / 4u + at];
      v = arena[p.v / 4u + at];
      w = arena[p.w / 4u + at];
      a = arena[p.a / 4u + at];
      if (p.has_gate == 1u) { v = fma(arena[p.v_first / 4u + at] - v, arena[p.v_gate / 4u + at], v); } else { arena[p.v_first / 4u + at] = v; }
      kks[four] = k * arena[p.k_k / 4u + c];
    }
    workgroupBarrier();
    var squares = vec4f();
    let raw = kks[four];
    if (is_four) {
      for (var q = 0u; q < N4; q++) { squares = fma(kks[q], kks[q], squares); }
    }
    workgroupBarrier();
    if (is_four) {
      let kk = raw / max(sqrt(sum4(squares)), 1e-12);
      let key = key_of(k, a, arena[p.k_a / 4u + c]);
      kks[four] = kk;
      bs[four] = kk * a;
      keys[four] = key;
      decay[four] = decay_of(w);
      query[four] = r;
      values[four] = v;
      bonuses[four] = r * key * arena[p.r_k / 4u + c];
    }
    workgroupBarrier();
#repeat i EACH_ROWS
    var sum$i = array<vec4f, SHARES>();
#end i
#repeat j EACH
    let kk$j = kks[vector_of($ju, part)];
#repeat i EACH_ROWS
    sum$i[$ju / TOGETHER % SHARES] = fma(s$i[$j], kk$j, sum$i[$ju / TOGETHER % SHARES]);
#end i
#end j
#repeat i EACH_ROWS
    let sa$i = sum_of_row(sum$i);
    let v$i = values[row$i / 4u][row$i % 4u];
    let noise$i = noise_of(v$i, keys[0].x, head * N + row$i);
    var y$i = array<vec4f, SHARES>();
#end i
#repeat j EACH
    {
      let q = vector_of($ju, part);
      let w4 = decay[q];
      let b4 = bs[q];
      let key4 = keys[q];
      let r4 = query[q];
#repeat i EACH_ROWS
      s$i[$j] = fma(vec4f(v$i), key4, fma(vec4f(-sa$i), b4, s$i[$j] * w4));
      y$i[$ju / TOGETHER % SHARES] = fma(s$i[$j], r4, y$i[$ju / TOGETHER % SHARES]);
      s$i[$j] = kept(s$i[$j], noise$i, 4u * q);
#end i
    }
#end j
#repeat i EACH_ROWS
    let out$i = sum_of_row(y$i);
    if (part == 0u) { outputs[row$i] = out$i; }
#end i
    workgroupBarrier();
    if (is_four) {
      let g = arena[p.g / 4u + at];
      let gain = arena[p.gain / 4u + c];
      let bias = arena[p.bias / 4u + c];
      var total = vec4f();
      var bonus = vec4f();
      for (var q = 0u; q < N4; q++) {
        total += output_at(q);
        bonus += bonuses[q];
      }
      let mean = sum4(total) / f32(N);
      var variance = vec4f();
      for (var q = 0u; q < N4; q++) {
        let d = output_at(q) - mean;
        variance = fma(d, d, variance);
      }
      let normed = (output_at(four) - mean) / sqrt(sum4(variance) / f32(N) + p.eps);
      let result = fma(vec4f(sum4(bonus)), v, fma(normed, gain, bias)) * g;
      arena[p.out / 4u + at] = result;
      keep_four(0u, p.kept, p.channels, t, head * N + 4u * four, result);
    }
  }
#repeat i EACH_ROWS
  store_state(state_at(slot, head * N + row$i), part, s$i);
#end i
}
