// The recurrence of prompts, over what wkv7-prepare made. PARTS threads keep a row of the state, a workgroup ROWS of a head. No row
// needs another, so threads meet once in TOKENS tokens, whose vectors come into shared memory meanwhile.
#include "wkv7-params.wgsl"
#include STATE
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
/** Decay, key, kk, b, query: [VECTORS, TOKENS, N4] */
var<workgroup> vectors: array<vec4f, VECTORS * TOKENS * N4>;
/** The values of the rows, then their outputs: [TOKENS, ROWS4] */
var<workgroup> values: array<vec4f, TOKENS * ROWS4>;
var<workgroup> outputs: array<f32, TOKENS * ROWS4 * 4u>;
const ROWS = 4u * ROWS4;
const THREADS = ROWS * PARTS;
#include ROW_PARTS

fn place_of(which: u32) -> u32 {
  switch (which) {
    case 0u: { return p.w; }
    case 1u: { return p.k; }
    case 2u: { return p.kk; }
    case 3u: { return p.a; }
    default: { return p.r; }
  }
}

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let own_thread = own_index(thread);
  let i = own_thread / PARTS;
  let part = own_thread % PARTS;
  let head = group.x / (N / ROWS);
  let first_row = head * N + group.x % (N / ROWS) * ROWS;
  let row = group.y;
  let slot = min(row_slot(row), p.slots);
  let end = row_end(row);
  var s = load_state(state_at(slot, first_row + i), part);
  var held: array<vec4f, VECTORS * LOADS>;
  var held_values: array<vec4f, VALUES>;
  for (var t0 = row_start(row); t0 < end; t0 += TOKENS) {
    if (t0 == row_start(row)) {
#repeat f VECTORS
#repeat l LOADS
      held[$fu * LOADS + $lu] = arena[(place_of($fu) + min(t0 + ($lu * THREADS + thread) / N4, end - 1u) * p.channels + head * N) / 4u + ($lu * THREADS + thread) % N4];
#end l
#end f
#repeat l VALUES
      held_values[$l] = arena[(p.v + min(t0 + ($lu * THREADS + thread) / ROWS4, end - 1u) * p.channels + first_row) / 4u + ($lu * THREADS + thread) % ROWS4];
#end l
    }
    workgroupBarrier();
#repeat f VECTORS
#repeat l LOADS
    vectors[$fu * TOKENS * N4 + $lu * THREADS + thread] = held[$fu * LOADS + $lu];
#end l
#end f
#repeat l VALUES
    if ($lu * THREADS + thread < TOKENS * ROWS4) { values[$lu * THREADS + thread] = held_values[$l]; }
#end l
    workgroupBarrier();
    // The next tokens' vectors are loaded while these are computed.
    let after = t0 + TOKENS;
#repeat f VECTORS
#repeat l LOADS
    held[$fu * LOADS + $lu] = arena[(place_of($fu) + min(after + ($lu * THREADS + thread) / N4, end - 1u) * p.channels + head * N) / 4u + ($lu * THREADS + thread) % N4];
#end l
#end f
#repeat l VALUES
    held_values[$l] = arena[(p.v + min(after + ($lu * THREADS + thread) / ROWS4, end - 1u) * p.channels + first_row) / 4u + ($lu * THREADS + thread) % ROWS4];
#end l
    let count = min(TOKENS, end - t0);
    // What a token's update waits for is summed while the token before is: sums over threads take longest, and so share the wait.
    var sum = vec4f();
#repeat j EACH
    let first_kk$j = vectors[2u * TOKENS * N4 + vector_of($ju, part)];
    sum = fma(s[$j], first_kk$j, sum);
#end j
    var sa = sum_of_row(sum4(sum));
    for (var t = 0u; t < count; t++) {
      let at = t * N4;
      let next = min(t + 1u, TOKENS - 1u) * N4;
      let v = values[t * ROWS4 + i / 4u][i % 4u];
      let noise = noise_of(v, vectors[TOKENS * N4 + at].x, first_row + i);
      var y = vec4f();
      sum = vec4f();
#repeat j EACH
      {
        let q = at + vector_of($ju, part);
        let decay = vectors[q];
        let key = vectors[TOKENS * N4 + q];
        let b = vectors[3u * TOKENS * N4 + q];
        let query = vectors[4u * TOKENS * N4 + q];
        let kk = vectors[2u * TOKENS * N4 + next + vector_of($ju, part)];
        s[$j] = fma(vec4f(v), key, fma(vec4f(-sa), b, s[$j] * decay));
        y = fma(s[$j], query, y);
        s[$j] = kept(s[$j], noise, 4u * vector_of($ju, part));
        sum = fma(s[$j], kk, sum);
      }
#end j
      let out = sum_of_row(sum4(y));
      sa = sum_of_row(sum4(sum));
      if (part == 0u) { outputs[t * ROWS + i] = out; }
    }
    workgroupBarrier();
#repeat l VALUES
    {
      let t = ($lu * THREADS + thread) / ROWS4;
      let q = ($lu * THREADS + thread) % ROWS4;
      if (t < count && $lu * THREADS + thread < TOKENS * ROWS4) {
        let first = t * ROWS + 4u * q;
        arena[(p.out + (t0 + t) * p.channels + first_row) / 4u + q] = vec4f(outputs[first], outputs[first + 1u], outputs[first + 2u], outputs[first + 3u]);
      }
    }
#end l
  }
  store_state(state_at(slot, first_row + i), part, s);
}
