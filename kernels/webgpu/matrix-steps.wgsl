  // The steps of linear-matrix.wgsl: a step's weights are decoded before any of it is multiplied. SETS steps are written out, and the
  // weights of each, which are asked for SETS steps before, have registers of their own: moved to others, they would be waited for.
#repeat h SETS
#repeat l WEIGHTS_EACH
  var weight$h_$l = weights_at(job, block, blocks, $lu * THREADS + thread, min($hu * EIGHTS, eights - EIGHTS));
#end l
#end h
  for (var first = 0u; first < eights; first += SETS * EIGHTS) {
#repeat h SETS
    if ($hu > 0u && first + $hu * EIGHTS >= eights) { break; }
    {
      workgroupBarrier();
#repeat l WEIGHTS_EACH
      keep(0u, $lu * THREADS + thread, weight$h_$l);
#end l
      workgroupBarrier();
      // Later steps' operands are loaded while these are multiplied; behind the last they are not used.
#repeat l WEIGHTS_EACH
      weight$h_$l = weights_at(job, block, blocks, $lu * THREADS + thread, min(first + ($hu + SETS) * EIGHTS, eights - EIGHTS));
#end l
      let after = min(first + ($hu + 1u) * EIGHTS, eights - EIGHTS);
      #include "matrix-products.wgsl"
    }
#end h
  }
