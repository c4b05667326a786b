  // The steps of linear-matrix.wgsl, of long loops with two buffers: while a step is multiplied, the weights of the next are decoded,
  // and those of the one behind it are on their way. Registers take what the next step needs as soon as they are used.
#repeat l WEIGHTS_EACH
  var weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, 0u);
#end l
#repeat l WEIGHTS_EACH
  keep(0u, $lu * THREADS + thread, weight$l);
  weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, min(EIGHTS, eights - EIGHTS));
#end l
  var buffer = 0u;
  for (var first = 0u; first < eights; first += EIGHTS) {
    workgroupBarrier();
    // Behind the last step nothing is used.
    let after = min(first + EIGHTS, eights - EIGHTS);
    let tile = buffer * TEAMS * TEAM_TILES + broad;
#repeat s STEP
    {
#repeat j ACROSS
      let right$j = subgroupMatrixLoad<subgroup_matrix_right<f16, SIDE, SIDE>, col_major>(&tiles[tile + $ju], $su * WIDE, STRIDE);
#end j
#repeat i DOWN
#repeat j ACROSS
      sum$i_$j = subgroupMatrixMultiplyAccumulate(next$i_$s, right$j, sum$i_$j);
#end j
      next$i_$s = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&halves[from$i + after / (WIDE * LEFTS) + $su / LEFTS], $su % LEFTS * SIDE * SIDE, SIDE);
#end i
#repeat l WEIGHTS_EACH
      if ($lu % STEP == $su) {
        keep(1u - buffer, $lu * THREADS + thread, weight$l);
        weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, min(first + 2u * EIGHTS, eights - EIGHTS));
      }
#end l
    }
#end s
    buffer = 1u - buffer;
  }
