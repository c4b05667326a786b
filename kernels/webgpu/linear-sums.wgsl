// Combines a workgroup's sums of all runs of NT tokens, in the order of the runs.
/** Partial sums of a token, skewed so that those of a run lie in different banks. */
const SUMS = SEGMENTS * BLOCK + BLOCK;
var<workgroup> partials: array<f32, NT * SUMS>;

/** sum + w·x, one after the other. */
fn dot_from(w: vec4f, x: vec4f, sum: f32) -> f32 {
  return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

var<workgroup> results: array<f32, NT * BLOCK>;

/** Outputs are stored four at a time: threads must not share a vector. */
fn finish(job: Job, thread: u32, first_row: u32, first_token: u32, count: u32) {
  workgroupBarrier();
  for (var at = thread; at < NT * BLOCK; at += LANES * BLOCK) {
    let first = at / BLOCK * SUMS + at % BLOCK;
    var total = 0.0;
    for (var run = 0u; run < SEGMENTS; run++) { total += partials[first + run * BLOCK]; }
    results[at] = total;
  }
  workgroupBarrier();
  let t = first_token + thread / 2u;
  if (thread < 2u * NT && t < count) {
    let at = 4u * thread;
    store4(job, t, first_row + at % BLOCK, vec4f(results[at], results[at + 1u], results[at + 2u], results[at + 3u]));
  }
}
