  // matrix-steps.wgsl with others beside (matrix-beside.wgsl): those have a loop of their own, with weights one step ahead.
  if (is_beside(job)) {
#repeat l OTHERS_EACH
    var other$l = others_at(job, block, blocks, $lu * THREADS + thread, 0u);
#end l
    for (var first = 0u; first < eights; first += EIGHTS) {
      workgroupBarrier();
#repeat l OTHERS_EACH
      keep_others($lu * THREADS + thread, other$l);
#end l
      workgroupBarrier();
      let after = min(first + EIGHTS, eights - EIGHTS);
#repeat l OTHERS_EACH
      other$l = others_at(job, block, blocks, $lu * THREADS + thread, after);
#end l
#repeat i DOWN
#repeat s STEP
      let left$i_$s = next$i_$s;
      next$i_$s = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&halves[from$i + after / (WIDE * LEFTS) + $su / LEFTS], $su % LEFTS * SIDE * SIDE, SIDE);
#end s
#end i
#repeat s STEP
      {
#repeat j ACROSS
        let right$j = subgroupMatrixLoad<subgroup_matrix_right<f16, SIDE, SIDE>, col_major>(&tiles[broad + $ju], $su * WIDE, STRIDE);
#end j
#repeat i DOWN
#repeat j ACROSS
        sum$i_$j = subgroupMatrixMultiplyAccumulate(left$i_$s, right$j, sum$i_$j);
#end j
#end i
      }
#end s
    }
  } else {
#include "matrix-steps.wgsl"
  }
