// Products of few tokens: a workgroup reads the weights of R blocks once. Each lane has one run of the inputs, or
// several if there are fewer lanes than runs; then R is 1.
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS
#include "linear-sums.wgsl"

@compute @workgroup_size(LANES * BLOCK)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let job = job_of(group.y * R);
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = group.y * R - job.first;
  if (block >= blocks) { return; }
  let row = thread % BLOCK;
  let lane = thread / BLOCK;
  let count = num_inputs();
  let t0 = group.x * NT;
#repeat i NT
  let input$i = job.x + min(t0 + $iu, count - 1u) * job.columns;
#end i
#repeat j R
  let block$j = min(block + $ju, blocks - 1u);
  let first$j = job.weight + block$j * BLOCK * job.units + row;
#end j
  let run = (job.units + SEGMENTS - 1u) / SEGMENTS;
  var sums: array<f32, R * NT>;
  for (var segment = lane; segment < SEGMENTS; segment += LANES) {
#repeat j R
#repeat i NT
    sums[$ju * NT + $iu] = 0.0;
#end i
#end j
    let end = min((segment + 1u) * run, job.units);
    let last = max(end, 1u) - 1u;
    // Weights are loaded one iteration ahead.
#repeat u UNROLL
#repeat j R
    var next$u$j = weights[first$j + min(segment * run + $uu, last) * BLOCK];
#end j
#end u
    for (var unit = segment * run; unit < end; unit += UNROLL) {
#repeat u UNROLL
      let after$u = min(unit + UNROLL + $uu, last);
#repeat j R
      var bits$u$j = next$u$j;
      next$u$j = weights[first$j + after$u * BLOCK];
      let scale$u$j = scale_of(job, block$j, row, min(unit + $uu, last));
#end j
#end u
#repeat u UNROLL
      if (unit + $uu < end) {
#repeat s STEPS
        {
          let k = (unit + $uu) * UNIT + 4u * QUADS * $su;
#repeat j R
          let w$j = decode(bits$u$j, scale$u$j);
          bits$u$j = next_step(bits$u$j);
#end j
#repeat q QUADS
#repeat i NT
          let x$q$i = x4(job, input$i, k + 4u * $qu);
#repeat j R
          sums[$ju * NT + $iu] = dot_from(w$j[$qu], x$q$i, sums[$ju * NT + $iu]);
#end j
#end i
#end q
        }
#end s
      }
#end u
    }
    if (LANES < SEGMENTS) {
#repeat i NT
      partials[$iu * SUMS + segment * BLOCK + row] = sums[$iu];
#end i
    }
  }
#repeat j R
  if (LANES == SEGMENTS) {
#repeat i NT
    partials[$iu * SUMS + thread] = sums[$ju * NT + $iu];
#end i
  }
  finish(job, thread, (block + $ju) * BLOCK, t0, count);
#end j
}
