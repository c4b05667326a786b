// Products of many tokens: a workgroup makes a tile of 128 tokens by 16·R outputs, a thread 8 tokens by R outputs, of inputs
// and weights that come step by step into shared memory. Each output's runs are summed as the lanes of linear.wgsl do it.
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS
#include "linear-tiles.wgsl"
const NT = 8u;
/** Threads across the outputs, and across the tokens. */
const ACROSS = 16u;
const TOKENS = NT * 16u;
const ROWS = ACROSS * R;
/** Vectors of a step, of which a thread brings INPUTS and WEIGHTS_EACH: [KQ, TOKENS] inputs, [KQ, ROWS] weights. */
const GROUPS_OF_QUADS = KQ / QUADS;
var<workgroup> inputs: array<vec4f, KQ * TOKENS>;
var<workgroup> outputs: array<vec4f, KQ * ROWS>;

/** sum + w·x, one after the other. */
fn dot_from(w: vec4f, x: vec4f, sum: f32) -> f32 {
  return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

/** Where it lies, so that a thread's rows are four side by side and threads read side by side. */
fn place_of(v: u32) -> u32 {
  let row = v % ROWS;
  return v / ROWS * ROWS + row / 64u * 64u + row % 4u * ACROSS + row % 64u / 4u;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first_block = group.y * (ROWS / BLOCK);
  let job = job_of(first_block);
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = first_block - job.first;
  if (block >= blocks) { return; }
  let column = thread % ACROSS;
  let team = thread / ACROSS;
  let count = num_inputs();
  let t0 = group.x * TOKENS;
  let run = (job.units + SEGMENTS - 1u) / SEGMENTS * STEPS;
  let quads = job.units * UNIT / 4u;

  var sums: array<f32, R * NT>;
  var totals: array<f32, R * NT>;
#repeat l INPUTS
  var input$l = input_at(job, t0 + ($lu * 256u + thread) % TOKENS, 0u + ($lu * 256u + thread) / TOKENS, count);
#end l
#repeat l WEIGHTS_EACH
  var weight$l = weight_at(job, block, blocks, ($lu * 256u + thread) % ROWS, 0u + ($lu * 256u + thread) / ROWS);
#end l
  var in_run = 0u;
  for (var quad = 0u; quad < quads; quad += KQ) {
    workgroupBarrier();
#repeat l INPUTS
    inputs[$lu * 256u + thread] = input$l;
#end l
#repeat l WEIGHTS_EACH
    outputs[place_of($lu * 256u + thread)] = weight$l;
#end l
    workgroupBarrier();
#repeat l INPUTS
    input$l = input_at(job, t0 + ($lu * 256u + thread) % TOKENS, quad + KQ + ($lu * 256u + thread) / TOKENS, count);
#end l
#repeat l WEIGHTS_EACH
    weight$l = weight_at(job, block, blocks, ($lu * 256u + thread) % ROWS, quad + KQ + ($lu * 256u + thread) / ROWS);
#end l
    for (var g = 0u; g < GROUPS_OF_QUADS; g++) {
#repeat q QUADS
      {
        let at = g * QUADS + $qu;
#repeat j R
        let w$j = outputs[at * ROWS + ($ju / 4u) * 64u + ($ju % 4u) * ACROSS + column];
#end j
#repeat i NT
        let x$i = inputs[at * TOKENS + team * NT + $iu];
#repeat j R
        sums[$ju * NT + $iu] = dot_from(w$j, x$i, sums[$ju * NT + $iu]);
#end j
#end i
      }
#end q
      in_run++;
      if (in_run == run) {
        in_run = 0u;
#repeat j R
#repeat i NT
        totals[$ju * NT + $iu] += sums[$ju * NT + $iu];
        sums[$ju * NT + $iu] = 0.0;
#end i
#end j
      }
    }
  }
#repeat i NT
  if (t0 + team * NT + $iu < count) {
#repeat f FOURS
    store4(job, t0 + team * NT + $iu, block * BLOCK + $fu * 64u + 4u * column, vec4f(
      totals[(4u * $fu) * NT + $iu] + sums[(4u * $fu) * NT + $iu],
      totals[(4u * $fu + 1u) * NT + $iu] + sums[(4u * $fu + 1u) * NT + $iu],
      totals[(4u * $fu + 2u) * NT + $iu] + sums[(4u * $fu + 2u) * NT + $iu],
      totals[(4u * $fu + 3u) * NT + $iu] + sums[(4u * $fu + 3u) * NT + $iu]));
#end f
  }
#end i
}
