// Inputs of dot products as linear-round.wgsl has left them, GROUPS at a time in shared memory, a step ahead.
@group(1) @binding(3) var<storage, read> rounded: array<vec4u>;
/** The same buffer. */
@group(1) @binding(4) var<storage, read> units: array<f32>;
var<workgroup> inputs: array<vec4u, NT * PARTS * GROUPS>;
var<workgroup> unit_of: array<f32, NT * GROUPS>;
#repeat l LOADS
var<private> input$l: vec4u;
#end l
var<private> unit: f32;

fn load(job: Job, t0: u32, count: u32, start: u32, thread: u32) {
  let groups = (job.columns + 31u) / 32u;
  /** Of a token, in vectors. */
  let room = PARTS * groups + (groups + 3u) / 4u;
#repeat l LOADS
  let at$l = $lu * THREADS + thread;
  let token$l = min(t0 + at$l / (PARTS * GROUPS), count - 1u);
  let group$l = min(start + at$l % GROUPS, groups - 1u);
  input$l = rounded[job.halves + token$l * room + at$l / GROUPS % PARTS * groups + group$l];
#end l
  let token = min(t0 + thread / GROUPS, count - 1u);
  unit = units[4u * (job.halves + token * room + PARTS * groups) + min(start + thread % GROUPS, groups - 1u)];
}

/** Of groups from `start` on. */
fn bring(job: Job, t0: u32, count: u32, start: u32, thread: u32) {
  if (start == 0u) { load(job, t0, count, start, thread); }
  workgroupBarrier();
#repeat l LOADS
  if ($lu * THREADS + thread < NT * PARTS * GROUPS) { inputs[$lu * THREADS + thread] = input$l; }
#end l
  if (thread < NT * GROUPS) { unit_of[thread] = unit; }
  load(job, t0, count, start + GROUPS, thread);
  workgroupBarrier();
}

fn input_at(job: Job, t: u32, i: u32, part: u32, start: u32, place: u32) -> vec4u { return inputs[(i * PARTS + part) * GROUPS + place]; }
fn unit_at(job: Job, t: u32, i: u32, start: u32, place: u32) -> f32 { return unit_of[i * GROUPS + place]; }
