// Layer norm of one row of the arena by one workgroup of WG threads.
#include SUMS

/** Mean and 1/√(variance + eps). */
fn row_stats(at: u32, count: u32, eps: f32, thread: u32) -> vec2f {
  var sum = 0.0;
  for (var c = thread; c < count; c += WG) { sum += arena[at + c]; }
  let mean = sum_over(sum, thread) / f32(count);
  var squares = 0.0;
  for (var c = thread; c < count; c += WG) {
    let d = arena[at + c] - mean;
    squares += d * d;
  }
  return vec2f(mean, 1.0 / sqrt(sum_over(squares, thread) / f32(count) + eps));
}
