// sums.wgsl with subgroups: each adds up its own values, then the sums of the subgroups are added up.
const THREADS = WG;
#include "entry-subgroups.wgsl"
var<workgroup> partial_sums: array<f32, WG>;

fn sum_over(value: f32, thread: u32) -> f32 {
  let own = subgroupAdd(value);
  if (lane == 0u) { partial_sums[subgroup] = own; }
  workgroupBarrier();
  var sum = 0.0;
  for (var i = lane; i < subgroups; i += lanes) { sum += partial_sums[i]; }
  let total = subgroupAdd(sum);
  workgroupBarrier();
  return total;
}
