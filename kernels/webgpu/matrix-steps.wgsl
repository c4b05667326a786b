  // The steps of linear-matrix.wgsl: a step's weights are decoded before any of it is multiplied.
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
    next$i_$s = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&halves[from$i + after / (WIDE * LEFTS) + $su / LEFTS], $su % LEFTS * SIDE * SIDE, SIDE);
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
