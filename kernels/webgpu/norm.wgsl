// Layer norm of a row of CHANNELS numbers by one workgroup of WG threads, of which each keeps EACH.
#include SUMS

/** Mean and 1/√(variance + eps). */
fn stats_of(row: array<f32, EACH>, eps: f32, thread: u32) -> vec2f {
  var sum = 0.0;
#repeat j EACH
  if ($ju * WG + thread < CHANNELS) { sum += row[$j]; }
#end j
  let mean = sums_over(vec2f(sum, 0.0), thread).x / f32(CHANNELS);
  var squares = 0.0;
#repeat j EACH
  if ($ju * WG + thread < CHANNELS) { squares = fma(row[$j] - mean, row[$j] - mean, squares); }
#end j
  return vec2f(mean, 1.0 / sqrt(sums_over(vec2f(squares, 0.0), thread).x / f32(CHANNELS) + eps));
}

/** A thread's numbers of a tensor's row: those that there are. */
fn row_at(at: u32, thread: u32) -> array<f32, EACH> {
  var row: array<f32, EACH>;
#repeat j EACH
  row[$j] = arena[at + min($ju * WG + thread, CHANNELS - 1u)];
#end j
  return row;
}
