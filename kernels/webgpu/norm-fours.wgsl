// norm.wgsl where the arena is in vectors of four: a thread keeps EACH of the row's FOURS.
#include SUMS

/** A thread's vectors of a row: those that there are. */
fn row_at(at: u32, thread: u32) -> array<vec4f, EACH> {
  var row: array<vec4f, EACH>;
#repeat j EACH
  row[$j] = arena[at / 4u + min($ju * WG + thread, FOURS - 1u)];
#end j
  return row;
}

/** Mean and 1/√(variance + eps). */
fn stats_of(row: array<vec4f, EACH>, eps: f32, thread: u32) -> vec2f {
  var sum = vec4f();
#repeat j EACH
  if ($ju * WG + thread < FOURS) { sum += row[$j]; }
#end j
  let mean = sum_over(sum.x + sum.y + sum.z + sum.w, thread) / f32(4u * FOURS);
  var squares = vec4f();
#repeat j EACH
  if ($ju * WG + thread < FOURS) { squares = fma(row[$j] - mean, row[$j] - mean, squares); }
#end j
  return vec2f(mean, 1.0 / sqrt(sum_over(squares.x + squares.y + squares.z + squares.w, thread) / f32(4u * FOURS) + eps));
}
