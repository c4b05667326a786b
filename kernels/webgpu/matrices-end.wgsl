// The end of a product by matrices: every subgroup puts its sums in memory, and those of the teams are added in their order.
#repeat i DOWN
#repeat j ACROSS
  workgroupBarrier();
  subgroupMatrixStore<row_major>(&sums[subgroup], 0u, sum$i_$j, SIDE);
  workgroupBarrier();
  for (var q = thread; q < TILES * QUADS_OF_SUMS; q += THREADS) {
    let tile = q / QUADS_OF_SUMS;
    let at = q % QUADS_OF_SUMS * 4u;
    let t = t0 + (tile / BROAD * DOWN + $iu) * SIDE + at / SIDE;
    var sum = vec4f();
#repeat m TEAMS
    sum += vec4f(sums[$mu * TILES + tile][at], sums[$mu * TILES + tile][at + 1u], sums[$mu * TILES + tile][at + 2u], sums[$mu * TILES + tile][at + 3u]);
#end m
    if (t < count) {
      store4(job, t, block * BLOCK + (tile % BROAD * ACROSS + $ju) * SIDE + at % SIDE, sum);
    }
  }
#end j
#end i
