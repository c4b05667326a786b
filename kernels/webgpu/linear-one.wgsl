// Products of one token: the same bits as linear.wgsl, CHUNK units of every run at a time. Inputs go through shared
// memory, so no thread waits for them; the weights of the next chunk are loaded meanwhile.
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS
const THREADS = SEGMENTS * BLOCK;
const FOURS_OF_UNIT = UNIT / 4u;
/** Of inputs: of a run in a chunk. */
const FOURS = CHUNK * FOURS_OF_UNIT;
/** From one four of a run to the next: one more than there are runs, so that what is written together lies apart. */
const STRIDE = SEGMENTS + 1u;
var<workgroup> inputs: array<vec4f, FOURS * STRIDE>;
/** Partial sums of a block, skewed so that those of a run lie in different banks. */
const SUMS = THREADS + BLOCK;
var<workgroup> partials: array<f32, R * SUMS>;
var<workgroup> results: array<f32, R * BLOCK>;

/** Four `place` of a chunk that begins at unit `start` of every run of `length` units; zeros beyond the end of a run. */
fn input_at(job: Job, t: u32, length: u32, start: u32, place: u32) -> vec4f {
  let in_run = start + place % FOURS / FOURS_OF_UNIT;
  let unit = place / FOURS * length + in_run;
  if (in_run >= length || unit >= job.units) { return vec4f(); }
  return x4(job, job.x + t * job.columns, unit * UNIT + 4u * (place % FOURS_OF_UNIT));
}

fn keep_input(place: u32, x: vec4f) {
  if (place < FOURS * SEGMENTS) { inputs[place % FOURS * STRIDE + place / FOURS] = x; }
}

/** sum + w·x, one after the other. */
fn dot_from(w: vec4f, x: vec4f, sum: f32) -> f32 {
  return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let job = job_of(group.y * R);
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = group.y * R - job.first;
  if (block >= blocks) { return; }
  let row = thread % BLOCK;
  let lane = thread / BLOCK;
  let t = group.x;
  let length = (job.units + SEGMENTS - 1u) / SEGMENTS;
  let last = job.units - 1u;
#repeat j R
  let block$j = min(block + $ju, blocks - 1u);
  let first$j = job.weight + block$j * BLOCK * job.units + row;
  var sum$j = 0.0;
#end j
#repeat u CHUNK
  let unit$u = min(lane * length + $uu, last);
#repeat j R
  var next$u_$j = weights[first$j + unit$u * BLOCK];
  var scale$u_$j = scale_of(job, block$j, row, unit$u);
#end j
#end u
#repeat l LOADS
  var input$l = input_at(job, t, length, 0u, $lu * THREADS + thread);
#end l
  // Outputs are stored four at a time: threads must not share a vector. What they are added to is read meanwhile.
  let own = block + thread / 2u;
  let own_row = own * BLOCK + 4u * thread % BLOCK;
  let is_storing = thread < 2u * R && own < blocks;
  var held = Held();
  if (is_storing) { held = held4(job, t, own_row); }
  for (var start = 0u; start < length; start += CHUNK) {
    workgroupBarrier();
#repeat l LOADS
    keep_input($lu * THREADS + thread, input$l);
#end l
    workgroupBarrier();
    let after = start + CHUNK;
    let is_more = after < length;
    if (is_more) {
#repeat l LOADS
      input$l = input_at(job, t, length, after, $lu * THREADS + thread);
#end l
    }
#repeat u CHUNK
    {
#repeat j R
      var bits$j = next$u_$j;
      let own$j = scale$u_$j;
#end j
      if (is_more) {
        let unit = min(lane * length + after + $uu, last);
#repeat j R
        next$u_$j = weights[first$j + unit * BLOCK];
        scale$u_$j = scale_of(job, block$j, row, unit);
#end j
      }
#repeat s STEPS
      {
#repeat j R
        let w$j = decode(bits$j, own$j);
        bits$j = next_step(bits$j);
#end j
#repeat q QUADS
        let x$q = inputs[($uu * FOURS_OF_UNIT + $su * QUADS + $qu) * STRIDE + lane];
#repeat j R
        sum$j = dot_from(w$j[$qu], x$q, sum$j);
#end j
#end q
      }
#end s
    }
#end u
  }
#repeat j R
  partials[$ju * SUMS + thread] = sum$j;
#end j
  workgroupBarrier();
  // In the order of the runs.
  if (thread < R * BLOCK) {
    let first = thread / BLOCK * SUMS + row;
#repeat r SEGMENTS
    let part$r = partials[first + $ru * BLOCK];
#end r
    var total = 0.0;
#repeat r SEGMENTS
    total += part$r;
#end r
    results[thread] = total;
  }
  workgroupBarrier();
  let at = 4u * thread;
  if (is_storing) { store_held(job, t, own_row, vec4f(results[at], results[at + 1u], results[at + 2u], results[at + 3u]), held); }
}
