// The end of a product by matrices: every subgroup puts a row of its sums in shared memory, and those of the teams are added in
// their order. What they are added to in memory is read meanwhile.
#repeat i DOWN
  workgroupBarrier();
#repeat j ACROSS
  subgroupMatrixStore<row_major>(&tiles[(subgroup * ACROSS + $ju) / BESIDE], $ju % BESIDE * (SIDE / 4u), sum$i_$j, STRIDE);
#end j
#repeat l SUMS_EACH
  let t$i_$l = t0 + (($lu * THREADS + thread) / (SIDE * ROW_QUADS) / BROAD * DOWN + $iu) * SIDE + ($lu * THREADS + thread) / ROW_QUADS % SIDE;
  let first$i_$l = block * BLOCK + ($lu * THREADS + thread) / (SIDE * ROW_QUADS) % BROAD * ACROSS * SIDE + 4u * (($lu * THREADS + thread) % ROW_QUADS);
  let isOwn$i_$l = $lu * THREADS + thread < ROUND_QUADS && t$i_$l < count;
  var held$i_$l = Held();
  if (isOwn$i_$l) { held$i_$l = held4(job, t$i_$l, first$i_$l); }
#end l
  workgroupBarrier();
#repeat l SUMS_EACH
  if (isOwn$i_$l) {
    let q = $lu * THREADS + thread;
    let matrix = q / (SIDE * ROW_QUADS) * ACROSS + q % ROW_QUADS / (SIDE / 4u);
    let at = q / ROW_QUADS % SIDE * STRIDE + matrix % BESIDE * (SIDE / 4u) + q % (SIDE / 4u);
    var sum = vec4f();
#repeat m TEAMS
    sum += bitcast<vec4f>(tiles[($mu * TILES * ACROSS + matrix) / BESIDE][at]);
#end m
    store_held(job, t$i_$l, first$i_$l, sum, held$i_$l);
  }
#end l
#end i
