// Products by matrices whose inputs come straight from memory: few subgroups read each. Those of the next step are loaded ahead.
const INPUT_TILES = 0u;
#include "matrices.wgsl"
/** [tokens / SIDE, columns / SIDE] matrices; see linear-halves.wgsl. */
@group(1) @binding(3) var<storage, read> halves: array<array<f16, SIDE * SIDE>>;

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
  let high = subgroup % TILES / BROAD * DOWN;
  let broad = team * TEAM_TILES + subgroup % BROAD * ACROSS;
  /** Of a row of inputs: whole steps, and the matrices that it has in memory. */
  let eights = (job.columns + INPUTS - 1u) / INPUTS * EIGHTS;
  let matrices = (job.columns + PADDED - 1u) / PADDED * (PADDED / SIDE);
#repeat i DOWN
  let from$i = job.halves / EIGHTS_OF_MATRIX + (t0 / SIDE + high + $iu) * matrices + team * STEP;
#end i
#repeat i DOWN
#repeat j ACROSS
  var sum$i_$j = subgroup_matrix_result<f32, SIDE, SIDE>();
#end j
#repeat s STEP
  var next$i_$s = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&halves[from$i + $su], 0u, SIDE);
#end s
#end i
#repeat l WEIGHTS_EACH
  var weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, 0u);
#end l
  var buffer = 0u;
  for (var first = 0u; first < eights; first += EIGHTS) {
    if (BUFFERS == 1u) { workgroupBarrier(); }
#repeat l WEIGHTS_EACH
    keep(buffer, $lu * THREADS + thread, weight$l);
#end l
    workgroupBarrier();
    // The next step's operands are loaded while these are multiplied; behind the last they are not used.
    let after = min(first + EIGHTS, eights - EIGHTS);
#repeat l WEIGHTS_EACH
    weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, after);
#end l
#repeat i DOWN
#repeat s STEP
    let left$i_$s = next$i_$s;
    next$i_$s = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&halves[from$i + after / WIDE + $su], 0u, SIDE);
#end s
#end i
    let tile = buffer * TEAMS * TEAM_TILES + broad;
#repeat s STEP
    {
#repeat j ACROSS
      let right$j = subgroupMatrixLoad<subgroup_matrix_right<f16, SIDE, SIDE>, col_major>(&tiles[tile + $ju], $su * WIDE, STRIDE);
#end j
#repeat i DOWN
#repeat j ACROSS
      sum$i_$j = subgroupMatrixMultiplyAccumulate(left$i_$s, right$j, sum$i_$j);
#end j
#end i
    }
#end s
    buffer = (buffer + 1u) % BUFFERS;
  }
#include "matrices-end.wgsl"
}
