      // The products of a step of linear-matrix.wgsl; the left sides of the one at `after` are loaded meanwhile.
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
