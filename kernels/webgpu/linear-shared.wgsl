// Products by matrices in large tiles: inputs, too, go through shared memory, as several subgroups read each. The same sums in
// the same order as linear-matrix.wgsl with as many teams and steps.
const INPUT_TILES = TOKENS / SIDE;
#include "matrices.wgsl"
/** Vectors of eight; see linear-halves.wgsl. */
@group(1) @binding(3) var<storage, read> halves: array<vec4u>;

/** `index`: as they lie in memory, within SIDE tokens and then the next. */
fn keep_input(buffer: u32, index: u32, bits: vec4u) {
  let in_row = index % (SIDE * EIGHTS);
  let eight = in_row / (SIDE * WIDE) * WIDE + in_row % WIDE;
  let tile = (buffer * TEAMS + eight / OWN_EIGHTS) * TEAM_TILES + index / (SIDE * EIGHTS);
  tiles[tile][in_row / WIDE % SIDE * STRIDE + eight % OWN_EIGHTS] = bits;
}

@compute @workgroup_size(TEAMS * HIGH * BROAD * LANES)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
) {
  let first_block = group.y * (ROWS / BLOCK);
  let job = job_of(first_block);
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = first_block - job.first;
  if (block >= blocks) { return; }
  let count = num_inputs();
  let t0 = group.x * TOKENS;
  let team = subgroup / TILES;
  let high = team * TEAM_TILES + subgroup % TILES / BROAD * DOWN;
  let broad = team * TEAM_TILES + INPUT_TILES + subgroup % BROAD * ACROSS;
  /** Of a row of inputs: whole steps, and the matrices that it has in memory. */
  let eights = (job.columns + INPUTS - 1u) / INPUTS * EIGHTS;
  let matrices = (job.columns + PADDED - 1u) / PADDED * (PADDED / SIDE);
#repeat l INPUTS_EACH
  let from$l = job.halves + (t0 / SIDE + ($lu * THREADS + thread) / (SIDE * EIGHTS)) * matrices * EIGHTS_OF_MATRIX + ($lu * THREADS + thread) % (SIDE * EIGHTS);
  var input$l = halves[from$l];
#end l
#repeat i DOWN
#repeat j ACROSS
  var sum$i_$j = subgroup_matrix_result<f32, SIDE, SIDE>();
#end j
#end i
#repeat l WEIGHTS_EACH
  var weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, 0u);
#end l
  var buffer = 0u;
  for (var first = 0u; first < eights; first += EIGHTS) {
    if (BUFFERS == 1u) { workgroupBarrier(); }
#repeat l INPUTS_EACH
    keep_input(buffer, $lu * THREADS + thread, input$l);
#end l
#repeat l WEIGHTS_EACH
    keep(buffer, $lu * THREADS + thread, weight$l);
#end l
    workgroupBarrier();
    // The next step's operands are loaded while these are multiplied; behind the last they are not used.
    let after = min(first + EIGHTS, eights - EIGHTS);
#repeat l WEIGHTS_EACH
    weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, after);
#end l
#repeat l INPUTS_EACH
    input$l = halves[from$l + after * SIDE];
#end l
    let row = buffer * TEAMS * TEAM_TILES + high;
    let tile = buffer * TEAMS * TEAM_TILES + broad;
#repeat s STEP
    {
#repeat i DOWN
      let left$i = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&tiles[row + $iu], $su * WIDE, STRIDE);
#end i
#repeat j ACROSS
      let right$j = subgroupMatrixLoad<subgroup_matrix_right<f16, SIDE, SIDE>, col_major>(&tiles[tile + $ju], $su * WIDE, STRIDE);
#end j
#repeat i DOWN
#repeat j ACROSS
      sum$i_$j = subgroupMatrixMultiplyAccumulate(left$i, right$j, sum$i_$j);
#end j
#end i
    }
#end s
    buffer = (buffer + 1u) % BUFFERS;
  }
#include "matrices-end.wgsl"
}
