// Products. A thread sums R outputs of NT tokens: a weight that was read is used NT times, an input R times. Of a workgroup's
// sixteen teams of sixteen threads, one for each output of a block, LANES share the runs of the inputs; the others have other
// tokens.
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS

const TEAMS = 16u;
const GROUPS = TEAMS / LANES;
var<workgroup> partials: array<f32, NT * BLOCK * TEAMS>;
var<workgroup> results: array<f32, NT * BLOCK * GROUPS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let job = job_of(group.x * R);
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = group.x * R - job.first;
  if (block >= blocks) { return; }
  let row = thread % BLOCK;
  let team = thread / BLOCK;
  let lane = team % LANES;
  let count = num_inputs();
  let t0 = group.y * GROUPS * NT;
  let own_token = t0 + team / LANES * NT;
#repeat i NT
  let input$i = job.x + min(own_token + $iu, count - 1u) * job.columns;
#end i
#repeat j R
  let block$j = min(block + $ju, blocks - 1u);
  let first$j = job.weight + block$j * BLOCK * job.units + row;
#end j

  let run = (job.units + SEGMENTS - 1u) / SEGMENTS;
  var totals: array<f32, R * NT>;
  for (var segment = lane; segment < SEGMENTS; segment += LANES) {
    // The declaration says so, too, but SwiftShader zeroes them in the first segment alone.
    var sums: array<f32, R * NT>;
#repeat j R
#repeat i NT
    sums[$ju * NT + $iu] = 0.0;
#end i
#end j
    let end = min((segment + 1u) * run, job.units);
    for (var unit = segment * run; unit < end; unit += UNROLL) {
#repeat u UNROLL
      let at$u = min(unit + $uu, end - 1u);
#repeat j R
      var bits$u$j = weights[first$j + at$u * BLOCK];
      let scale$u$j = scale_of(job, block$j, row, at$u);
#end j
#end u
#repeat u UNROLL
      if (unit + $uu < end) {
        for (var s = 0u; s < STEPS; s++) {
          let k = (unit + $uu) * UNIT + 4u * QUADS * s;
#repeat j R
          let w$j = decode(bits$u$j, scale$u$j);
          bits$u$j = next_step(bits$u$j);
#end j
#repeat q QUADS
#repeat i NT
          {
            let x = x4(job, input$i, k + 4u * $qu);
#repeat j R
            sums[$ju * NT + $iu] = dot_from(w$j[$qu], x, sums[$ju * NT + $iu]);
#end j
          }
#end i
#end q
        }
      }
#end u
    }
#repeat j R
#repeat i NT
    totals[$ju * NT + $iu] += sums[$ju * NT + $iu];
#end i
#end j
  }

#repeat j R
#repeat i NT
  if (LANES == 1u) {
    results[(team * NT + $iu) * BLOCK + row] = totals[$ju * NT + $iu];
  } else {
    partials[($iu * TEAMS + team) * BLOCK + row] = totals[$ju * NT + $iu];
  }
#end i
  workgroupBarrier();
  if (LANES > 1u) {
    if (team < NT) {
      var sum = 0.0;
      for (var l = 0u; l < TEAMS; l++) { sum += partials[(team * TEAMS + l) * BLOCK + row]; }
      results[team * BLOCK + row] = sum;
    }
    workgroupBarrier();
  }
  for (var v = thread; v < NT * GROUPS * 4u; v += 256u) {
    let t = t0 + v / 4u;
    let quad = 4u * v;
    if (t < count) {
      store4(job, t, (block + $ju) * BLOCK + 4u * (v % 4u),
        vec4f(results[quad], results[quad + 1u], results[quad + 2u], results[quad + 3u]));
    }
  }
  workgroupBarrier();
#end j
}

/** sum + w·x, one after the other. */
fn dot_from(w: vec4f, x: vec4f, sum: f32) -> f32 {
  return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}
