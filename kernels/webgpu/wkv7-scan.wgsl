// The recurrence of prompts, over what wkv7-prepare made. PARTS threads keep ROWS_EACH rows of the state, for which they read
// each vector once, a workgroup ROWS of a head. No row needs another, so threads meet once in TOKENS tokens, whose vectors come
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
const THREADS = ROWS * PARTS / ROWS_EACH;
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
#repeat m ROWS_EACH
  let own$m = i + $mu * (ROWS / ROWS_EACH);
  var s$m = load_state(state_at(slot, first_row + own$m), part);
#end m
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
#repeat m ROWS_EACH
    var sum$m = vec4f();
#end m
#repeat j EACH
    let first_kk$j = vectors[2u * TOKENS * N4 + vector_of($ju, part)];
#repeat m ROWS_EACH
    sum$m = fma(s$m[$j], first_kk$j, sum$m);
#end m
#end j
#repeat m ROWS_EACH
    var sa$m = sum_of_row(sum4(sum$m));
#end m
    for (var t = 0u; t < count; t++) {
      let at = t * N4;
      let next = min(t + 1u, TOKENS - 1u) * N4;
#repeat m ROWS_EACH
      let v$m = values[t * ROWS4 + own$m / 4u][own$m % 4u];
      let noise$m = noise_of(v$m, vectors[TOKENS * N4 + at].x, first_row + own$m);
      var y$m = vec4f();
      sum$m = vec4f();
#end m
#repeat j EACH
      {
        let q = at + vector_of($ju, part);
        let decay = vectors[q];
        let key = vectors[TOKENS * N4 + q];
        let b = vectors[3u * TOKENS * N4 + q];
        let query = vectors[4u * TOKENS * N4 + q];
        let kk = vectors[2u * TOKENS * N4 + next + vector_of($ju, part)];
#repeat m ROWS_EACH
        s$m[$j] = fma(vec4f(v$m), key, fma(vec4f(-sa$m), b, s$m[$j] * decay));
        y$m = fma(s$m[$j], query, y$m);
        s$m[$j] = kept(s$m[$j], noise$m, 4u * vector_of($ju, part));
        sum$m = fma(s$m[$j], kk, sum$m);
#end m
      }
#end j
#repeat m ROWS_EACH
      let out$m = sum_of_row(sum4(y$m));
      sa$m = sum_of_row(sum4(sum$m));
      if (part == 0u) { outputs[t * ROWS + own$m] = out$m; }
#end m
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
#repeat m ROWS_EACH
  store_state(state_at(slot, first_row + own$m), part, s$m);
#end m
}
