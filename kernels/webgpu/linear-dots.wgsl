// Products of up to four tokens with integer weights: a workgroup makes R blocks of outputs of NT tokens, TURNS times.
// Inputs are whole numbers of two bytes in units of their group of 32. The sum of a group is exact. Each of 32 lanes adds up
// every 32nd group, then the lanes are added in a fixed order: an output has the same bits whatever NT, R, TURNS and EACH
// are.
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS
/** Of what is kept as bytes, an output is a token. */
var<private> kept_to: u32;
fn kept_at(i: u32) -> u32 { return kept_to; }
const PARTS = 4u;
/** Of the lanes. */
const FOURTH = 8u;
const LANES = SEGMENTS;
const THREADS = LANES * BLOCK;
/** Of a step: EACH of a lane. */
const GROUPS = EACH * LANES;
#include INPUTS
/** Partial sums of a token, skewed so that those of a run lie in different banks. */
const SUMS = THREADS + BLOCK;
var<workgroup> partials: array<f32, TOGETHER * NT * SUMS>;
var<workgroup> results: array<f32, TOGETHER * NT * BLOCK>;
#include BESIDE

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let job = job_of(group.y * TURNS * R);
  if (is_beside(job)) {
    make_beside(job, group.y, thread);
    return;
  }
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = group.y * TURNS * R - job.first;
  if (block >= blocks) { return; }
  kept_to = job.kept;
  let row = thread % BLOCK;
  let lane = thread / BLOCK;
  let t0 = group.x * NT;
  // Of one token each workgroup has one; the number would be waited for.
  var count = t0 + 1u;
  if (NT > 1u) { count = num_inputs(); }
  let groups = (job.columns + 31u) / 32u;
  let last = groups - 1u;
#repeat n TURNS
#repeat j R
#repeat i NT
  var sum$n_$j_$i = 0.0;
#end i
#end j
#end n
#repeat i NT
  let token$i = min(t0 + $iu, count - 1u);
#end i
#repeat u EACH
  let begin$u = min($uu * LANES + lane, last);
#repeat j R
  let block$u_$j = min(block + $ju, blocks - 1u);
  var next$u_$j = group_at(job, job.weight + block$u_$j * BLOCK * job.units + row, begin$u);
  var scale$u_$j = scale_of(job, block$u_$j, row, begin$u);
#end j
#end u
  for (var start = 0u; start < groups; start += GROUPS) {
    bring(job, t0, count, start, thread);
#repeat n TURNS
#repeat u EACH
    {
      let place = $uu * LANES + lane;
      // Weights are on their way a turn ahead: of the next blocks, or of the first ones' next groups.
      let is_last = $nu == TURNS - 1u;
      let after = select(start + place, start + GROUPS + place, is_last);
#repeat j R
      let own$j = next$u_$j;
      let by$j = scale$u_$j;
      if (!is_last || start + GROUPS < groups) {
        let block$j = min(block + select(($nu + 1u) * R, 0u, is_last) + $ju, blocks - 1u);
        next$u_$j = group_at(job, job.weight + block$j * BLOCK * job.units + row, min(after, last));
        scale$u_$j = scale_of(job, block$j, row, min(after, last));
      }
#end j
      if (start + place < groups) {
#repeat j R
#repeat i NT
        var high$j_$i = 0i;
        var low$j_$i = 0i;
#end i
#end j
#repeat p PARTS
        {
#repeat j R
          let w$j = eight$p(own$j);
#end j
#repeat i NT
          let x$i = input_at(job, token$i, $iu, $pu, start, place);
#repeat j R
          high$j_$i = high$j_$i + dot4I8Packed(w$j.x, x$i.x);
          high$j_$i = high$j_$i + dot4I8Packed(w$j.y, x$i.y);
          low$j_$i = low$j_$i + dot4I8Packed(w$j.x, x$i.z);
          low$j_$i = low$j_$i + dot4I8Packed(w$j.y, x$i.w);
#end j
#end i
        }
#end p
#repeat i NT
        let unit$i = unit_at(job, token$i, $iu, start, place);
#repeat j R
        sum$n_$j_$i = fma(f32(256i * high$j_$i + low$j_$i), by$j * unit$i, sum$n_$j_$i);
#end j
#end i
      }
    }
#end u
#end n
  }
#repeat n TURNS
#repeat j R
  if (($nu * R + $ju) % TOGETHER == 0u) { workgroupBarrier(); }
#repeat i NT
  partials[(($nu * R + $ju) % TOGETHER * NT + $iu) * SUMS + thread] = sum$n_$j_$i;
#end i
  if (($nu * R + $ju) % TOGETHER == TOGETHER - 1u) {
    finish(job, thread, block + $nu * R + $ju + 1u - TOGETHER, blocks, t0, count);
  }
#end j
#end n
  keep_all(job.y_stride, 0u, 1u, BLOCK * block, min(BLOCK * (block + TURNS * R), job.rows), thread);
}

/** Of TOGETHER blocks: adds up the lanes. Outputs are stored four at a time: threads must not share a vector. */
fn finish(job: Job, thread: u32, block: u32, blocks: u32, t0: u32, count: u32) {
  let own = block + thread / (2u * NT);
  let row = own * BLOCK + 4u * thread % BLOCK;
  let t = t0 + thread / 2u % NT;
  let is_storing = thread < 2u * TOGETHER * NT && own < blocks && t < count;
  var held = Held();
  if (is_storing) { held = held4(job, t, row); }
  workgroupBarrier();
  if (thread < TOGETHER * NT * BLOCK) {
    let first = thread / BLOCK * SUMS + thread % BLOCK;
    var four = vec4f();
#repeat r FOURTH
    four += vec4f(
      partials[first + 4u * $ru * BLOCK],
      partials[first + (4u * $ru + 1u) * BLOCK],
      partials[first + (4u * $ru + 2u) * BLOCK],
      partials[first + (4u * $ru + 3u) * BLOCK],
    );
#end r
    results[thread] = sum4(four);
  }
  workgroupBarrier();
  let at = 4u * thread;
  if (is_storing) { store_held(job, t, row, vec4f(results[at], results[at + 1u], results[at + 2u], results[at + 3u]), held); }
}
