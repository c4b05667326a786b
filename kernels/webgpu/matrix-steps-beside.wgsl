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
      #include "matrix-products.wgsl"
    }
  } else {
#include "matrix-steps.wgsl"
  }
