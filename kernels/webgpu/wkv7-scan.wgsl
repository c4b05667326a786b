// The recurrence of prompts, over what wkv7-prepare made. PARTS threads keep EACH_ROWS rows of the state, for which they read shared
// memory once; a workgroup keeps ROWS of a head. No row needs another, so threads meet once in TOKENS tokens, whose vectors come
// into shared memory meanwhile.
#include "wkv7-params.wgsl"
#include STATE
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
/** Decay, key, kk, b, query: [VECTORS, TOKENS, N4] */
var<workgroup> vectors: array<vec4f, VECTORS * TOKENS * N4>;
/** The values of the rows, then their outputs: [TOKENS, ROWS4] */
var<workgroup> values: array<vec4f, TOKENS * ROWS4>;
var<workgroup> outputs: array<f32, TOKENS * ROWS4 * 4u>;
const ROWS = 4u * ROWS4;
const STEP = ROWS / EACH_ROWS;
const THREADS = STEP * PARTS;
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
  let part = own_thread % PARTS;
  let head = group.x / (N / ROWS);
  let first_row = head * N + group.x % (N / ROWS) * ROWS;
  let row = group.y;
  let slot = min(row_slot(row), p.slots);
  let end = row_end(row);
#repeat i EACH_ROWS
  let row$i = own_thread / PARTS + $iu * STEP;
  var s$i = load_state(state_at(slot, first_row + row$i), part);
#end i
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
#repeat i EACH_ROWS
    var sum$i = array<vec4f, SHARES>();
#repeat j EACH
    sum$i[$ju / TOGETHER % SHARES] = fma(s$i[$j], vectors[2u * TOKENS * N4 + vector_of($ju, part)], sum$i[$ju / TOGETHER % SHARES]);
#end j
    var sa$i = sum_of_row(sum$i);
#end i
    for (var t = 0u; t < count; t++) {
      let at = t * N4;
      let next = min(t + 1u, TOKENS - 1u) * N4;
#repeat i EACH_ROWS
      let v$i = values[t * ROWS4 + row$i / 4u][row$i % 4u];
      let noise$i = noise_of(v$i, vectors[TOKENS * N4 + at].x, first_row + row$i);
      var y$i = array<vec4f, SHARES>();
      sum$i = array<vec4f, SHARES>();
#end i
#repeat j EACH
      {
        let q = at + vector_of($ju, part);
        let decay = vectors[q];
        let key = vectors[TOKENS * N4 + q];
        let b = vectors[3u * TOKENS * N4 + q];
        let query = vectors[4u * TOKENS * N4 + q];
        let kk = vectors[2u * TOKENS * N4 + next + vector_of($ju, part)];
#repeat i EACH_ROWS
        s$i[$j] = fma(vec4f(v$i), key, fma(vec4f(-sa$i), b, s$i[$j] * decay));
        y$i[$ju / TOGETHER % SHARES] = fma(s$i[$j], query, y$i[$ju / TOGETHER % SHARES]);
        s$i[$j] = kept(s$i[$j], noise$i, 4u * vector_of($ju, part));
        sum$i[$ju / TOGETHER % SHARES] = fma(s$i[$j], kk, sum$i[$ju / TOGETHER % SHARES]);
#end i
      }
#end j
#repeat i EACH_ROWS
      sa$i = sum_of_row(sum$i);
#end i
#repeat i ONES
      let out$i = sum_of_row(y$i);
      if (part == 0u) { outputs[t * ROWS + row$i] = out$i; }
#end i
#repeat i TWOS
      let is_second = part >= PARTS / 2u;
      let out = sum_of_either(y0, y1, is_second);
      if (part % (PARTS / 2u) == 0u) { outputs[t * ROWS + select(row0, row1, is_second)] = out; }
#end i
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
#repeat i EACH_ROWS
  store_state(state_at(slot, first_row + row$i), part, s$i);
#end i
}
