// Products of many tokens by the matrix units of a subgroup: inputs and weights are rounded to f16, their products summed in
// f32. A workgroup makes a tile of TOKENS by ROWS outputs, a subgroup DOWN by ACROSS matrices of it, SIDE by SIDE outputs
// each.
enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS
#include "linear-tiles.wgsl"
const TOKENS = HIGH * DOWN * SIDE;
const ROWS = BROAD * ACROSS * SIDE;
/** Inputs of a step, and from one row of a tile to the next: 16 bytes more, so that rows lie in different banks. */
const INPUTS = SIDE * STEP;
const STRIDE = INPUTS + 8u;
const QUADS_OF_STEP = INPUTS / 4u;
var<workgroup> inputs: array<f16, TOKENS * STRIDE>;
var<workgroup> outputs: array<f16, ROWS * STRIDE>;
/** Of each subgroup a matrix of sums, on its way to memory. */
var<workgroup> sums: array<f32, HIGH * BROAD * SIDE * SIDE>;

/** What is beyond the range of f16 is its largest number; NaN stays. */
fn half_of(x: vec4f) -> vec4h {
  let is_number = (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) <= vec4u(0x7f800000u);
  return vec4h(select(x, clamp(x, vec4f(-65504.0), vec4f(65504.0)), is_number));
}

@compute @workgroup_size(HIGH * BROAD * LANES)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
) {
  let first_block = group.y * (ROWS / BLOCK);
  let job = job_of(first_block);
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = first_block - job.first;
  if (block >= blocks) { return; }
  let count = num_inputs();
  let t0 = group.x * TOKENS;
  let high = subgroup / BROAD * DOWN * SIDE;
  let broad = subgroup % BROAD * ACROSS * SIDE;
  let quads = job.units * UNIT / 4u;
#repeat i DOWN
#repeat j ACROSS
  var sum$i_$j = subgroup_matrix_result<f32, SIDE, SIDE>();
#end j
#end i
#repeat l INPUTS_EACH
  var input$l = input_at(job, t0 + ($lu * THREADS + thread) / QUADS_OF_STEP, ($lu * THREADS + thread) % QUADS_OF_STEP, count);
#end l
#repeat l WEIGHTS_EACH
  var weight$l = weight_at(job, block, blocks, ($lu * THREADS + thread) % ROWS, ($lu * THREADS + thread) / ROWS);
#end l
  for (var quad = 0u; quad < quads; quad += QUADS_OF_STEP) {
    workgroupBarrier();
#repeat l INPUTS_EACH
    {
      let at = ($lu * THREADS + thread) / QUADS_OF_STEP * STRIDE + ($lu * THREADS + thread) % QUADS_OF_STEP * 4u;
      let h = half_of(input$l);
      inputs[at] = h.x;
      inputs[at + 1u] = h.y;
      inputs[at + 2u] = h.z;
      inputs[at + 3u] = h.w;
    }
#end l
#repeat l WEIGHTS_EACH
    {
      let at = ($lu * THREADS + thread) % ROWS * STRIDE + ($lu * THREADS + thread) / ROWS * 4u;
      let h = half_of(weight$l);
      outputs[at] = h.x;
      outputs[at + 1u] = h.y;
      outputs[at + 2u] = h.z;
      outputs[at + 3u] = h.w;
    }
#end l
    workgroupBarrier();
    // The next step's operands are loaded while these are multiplied.
    let next = quad + QUADS_OF_STEP;
#repeat l INPUTS_EACH
    input$l = input_at(job, t0 + ($lu * THREADS + thread) / QUADS_OF_STEP, next + ($lu * THREADS + thread) % QUADS_OF_STEP, count);
#end l
#repeat l WEIGHTS_EACH
    weight$l = weight_at(job, block, blocks, ($lu * THREADS + thread) % ROWS, next + ($lu * THREADS + thread) / ROWS);
#end l
#repeat s STEP
    {
#repeat i DOWN
      let left$i = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&inputs, (high + $iu * SIDE) * STRIDE + $su * SIDE, STRIDE);
#end i
#repeat j ACROSS
      let right$j = subgroupMatrixLoad<subgroup_matrix_right<f16, SIDE, SIDE>, col_major>(&outputs, (broad + $ju * SIDE) * STRIDE + $su * SIDE, STRIDE);
#end j
#repeat i DOWN
#repeat j ACROSS
      sum$i_$j = subgroupMatrixMultiplyAccumulate(left$i, right$j, sum$i_$j);
#end j
#end i
    }
#end s
  }
#repeat i DOWN
#repeat j ACROSS
  workgroupBarrier();
  subgroupMatrixStore<row_major>(&sums, subgroup * SIDE * SIDE, sum$i_$j, SIDE);
  workgroupBarrier();
  for (var q = lane; q < SIDE * SIDE / 4u; q += LANES) {
    let t = t0 + high + $iu * SIDE + q / (SIDE / 4u);
    let at = subgroup * SIDE * SIDE + 4u * q;
    if (t < count) {
      store4(job, t, block * BLOCK + broad + $ju * SIDE + q % (SIDE / 4u) * 4u, vec4f(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]));
    }
  }
#end j
#end i
}
