// norm.wgsl where the arena is in vectors of four.
#include SUMS
/** Vectors that a thread reads at a time: alone, each would be waited for. */
const NORM_READS = 4u;

/** Mean and 1/√(variance + eps). */
fn row_stats(at: u32, count: u32, eps: f32, thread: u32) -> vec2f {
  let fours = count / 4u;
  var sum = vec4f();
  for (var first = thread; first < fours; first += NORM_READS * WG) {
#repeat j NORM_READS
    let value$j = arena[at / 4u + min(first + $ju * WG, fours - 1u)];
#end j
#repeat j NORM_READS
    if (first + $ju * WG < fours) { sum += value$j; }
#end j
  }
  let mean = sum_over(sum.x + sum.y + sum.z + sum.w, thread) / f32(count);
  var squares = vec4f();
  for (var first = thread; first < fours; first += NORM_READS * WG) {
#repeat j NORM_READS
    let value$j = arena[at / 4u + min(first + $ju * WG, fours - 1u)];
#end j
#repeat j NORM_READS
    if (first + $ju * WG < fours) { squares = fma(value$j - mean, value$j - mean, squares); }
#end j
  }
  return vec2f(mean, 1.0 / sqrt(sum_over(squares.x + squares.y + squares.z + squares.w, thread) / f32(count) + eps));
}
