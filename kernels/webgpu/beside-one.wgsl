// Beside dot products of one token, in the same launch: products with 16-bit weights, each workgroup a block. They have the bits
// of linear-one.wgsl: 32 runs of whole units, each summed from its first input to its last, then the runs in their order.
@group(1) @binding(5) var<storage, read> others: array<vec4u>;
#include PAIRS
/** Inputs of a run at a time: of a unit two fours. */
const FOURS_BESIDE = 2u * UNITS_BESIDE;
const RUN_STRIDE = SEGMENTS + 1u;
var<workgroup> run_inputs: array<vec4f, FOURS_BESIDE * RUN_STRIDE>;

fn is_beside(job: Job) -> bool { return job.is_beside == 1u; }

fn dot_beside(first: u32, second: u32, x: vec4f, sum: f32) -> f32 {
  let w = vec4f(pair(first), pair(second));
  return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

fn make_beside(job: Job, group: u32, thread: u32) {
  let block = group - job.first / (TURNS * R);
  let row = thread % BLOCK;
  let lane = thread / BLOCK;
  let length = (job.units + SEGMENTS - 1u) / SEGMENTS;
  let weight = job.weight + block * BLOCK * job.units + row;
  let first_row = block * BLOCK + 4u * thread;
  let is_storing = thread < 2u;
  var held = Held();
  if (is_storing) { held = held4(job, 0u, first_row); }
  var sum = 0.0;
  for (var start = 0u; start < length; start += UNITS_BESIDE) {
#repeat u UNITS_BESIDE
    let own$u = others[weight + min(lane * length + start + $uu, job.units - 1u) * BLOCK];
#end u
#repeat l LOADS_BESIDE
    let place$l = $lu * THREADS + thread;
    let in_run$l = start + place$l % FOURS_BESIDE / 2u;
    let unit$l = place$l / FOURS_BESIDE * length + in_run$l;
    var input$l = vec4f();
    if (in_run$l < length && unit$l < job.units) { input$l = x4(job, job.x, 8u * unit$l + 4u * (place$l % 2u)); }
#end l
    workgroupBarrier();
#repeat l LOADS_BESIDE
    if (place$l < FOURS_BESIDE * SEGMENTS) { run_inputs[place$l % FOURS_BESIDE * RUN_STRIDE + place$l / FOURS_BESIDE] = input$l; }
#end l
    workgroupBarrier();
#repeat u UNITS_BESIDE
    sum = dot_beside(own$u.x, own$u.y, run_inputs[2u * $uu * RUN_STRIDE + lane], sum);
    sum = dot_beside(own$u.z, own$u.w, run_inputs[(2u * $uu + 1u) * RUN_STRIDE + lane], sum);
#end u
  }
  partials[thread] = sum;
  workgroupBarrier();
  if (thread < BLOCK) {
#repeat r SEGMENTS
    let part$r = partials[$ru * BLOCK + thread];
#end r
    var total = 0.0;
#repeat r SEGMENTS
    total += part$r;
#end r
    results[thread] = total;
  }
  workgroupBarrier();
  let at = 4u * thread;
  if (is_storing) { store_held(job, 0u, first_row, vec4f(results[at], results[at + 1u], results[at + 2u], results[at + 3u]), held); }
}
