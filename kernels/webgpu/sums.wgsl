// The sum over all threads of a workgroup; each thread gets it.
const THREADS = WG;
#include "entry.wgsl"
var<workgroup> partial_sums: array<f32, WG>;

fn sum_over(value: f32, thread: u32) -> f32 {
  partial_sums[thread] = value;
  workgroupBarrier();
  if (thread < 16u) {
    var sum = 0.0;
    for (var i = thread; i < WG; i += 16u) { sum += partial_sums[i]; }
    partial_sums[thread] = sum;
  }
  workgroupBarrier();
  var total = 0.0;
  for (var i = 0u; i < 16u; i++) { total += partial_sums[i]; }
  workgroupBarrier();
  return total;
}
