// Layer norm of one row of the arena by one workgroup of WG threads.
var<workgroup> partial_sums: array<f32, WG>;

/** The sum over all threads, in one order whatever the device. */
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
