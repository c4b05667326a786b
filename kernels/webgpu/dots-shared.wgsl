// Inputs of dot products are rounded by each workgroup, GROUPS at a time.
#include "dots-round.wgsl"
/** From one part of a group to the next: what is written together lies in different banks. */
const STRIDE = GROUPS + 2u;
var<workgroup> inputs: array<vec4u, NT * PARTS * STRIDE>;
var<workgroup> unit_of: array<f32, NT * GROUPS>;
var<workgroup> largest: array<u32, NT * PARTS * GROUPS>;

fn fours_at(job: Job, first: u32, k: u32) -> array<vec4f, 2> {
  var all = array<vec4f, 2>();
  if (k + 4u <= job.columns) { all[0] = x4(job, first, k); }
  if (k + 8u <= job.columns) { all[1] = x4(job, first, k + 4u); }
  return all;
}

/** Of groups from `start` on. */
fn bring(job: Job, t0: u32, count: u32, start: u32, thread: u32) {
#repeat l LOADS
  let at$l = $lu * THREADS + thread;
  let token$l = min(t0 + at$l / (PARTS * GROUPS), count - 1u);
  let input$l = fours_at(job, job.x + token$l * job.columns, 32u * start + 8u * (at$l % (PARTS * GROUPS)));
#end l
  workgroupBarrier();
#repeat l LOADS
  if (at$l < NT * PARTS * GROUPS) { largest[at$l] = largest_of(input$l[0], input$l[1]); }
#end l
  workgroupBarrier();
#repeat l LOADS
  if (at$l < NT * PARTS * GROUPS) {
    let own = at$l / PARTS * PARTS;
    let most = max(max(largest[own], largest[own + 1u]), max(largest[own + 2u], largest[own + 3u]));
    let i = at$l / (PARTS * GROUPS);
    let g = at$l / PARTS % GROUPS;
    inputs[(i * PARTS + at$l % PARTS) * STRIDE + g] = rounded_eight(input$l[0], input$l[1], most);
    if (at$l % PARTS == 0u) { unit_of[i * GROUPS + g] = scale_of_inputs(most); }
  }
#end l
  workgroupBarrier();
}

fn input_at(job: Job, t: u32, i: u32, part: u32, start: u32, place: u32) -> vec4u { return inputs[(i * PARTS + part) * STRIDE + place]; }
fn unit_at(job: Job, t: u32, i: u32, start: u32, place: u32) -> f32 { return unit_of[i * GROUPS + place]; }
