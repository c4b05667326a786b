// Layer norm of one row of the arena by one workgroup of WG threads.
#include SUMS
/** Numbers that a thread reads at a time: alone, each would be waited for. */
const NORM_READS = 8u;

/** Mean and 1/√(variance + eps). */
fn row_stats(at: u32, count: u32, eps: f32, thread: u32) -> vec2f {
  var sum = 0.0;
  for (var first = thread; first < count; first += NORM_READS * WG) {
#repeat j NORM_READS
    let value$j = arena[at + min(first + $ju * WG, count - 1u)];
#end j
#repeat j NORM_READS
    if (first + $ju * WG < count) { sum += value$j; }
#end j
  }
  let mean = sum_over(sum, thread) / f32(count);
  var squares = 0.0;
  for (var first = thread; first < count; first += NORM_READS * WG) {
#repeat j NORM_READS
    let value$j = arena[at + min(first + $ju * WG, count - 1u)];
#end j
#repeat j NORM_READS
    if (first + $ju * WG < count) { squares = fma(value$j - mean, value$j - mean, squares); }
#end j
  }
  return vec2f(mean, 1.0 / sqrt(sum_over(squares, thread) / f32(count) + eps));
}
