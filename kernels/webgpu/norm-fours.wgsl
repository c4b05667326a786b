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
fn stats_of_one(row: array<vec4f, EACH>, eps: f32, thread: u32) -> vec2f {
  var sum = vec4f();
#repeat j EACH
  if ($ju * WG + thread < FOURS) { sum += row[$j]; }
#end j
  let mean = sums_over(vec2f(sum_of_four(sum), 0.0), thread).x / f32(4u * FOURS);
  var squares = vec4f();
#repeat j EACH
  if ($ju * WG + thread < FOURS) { squares = fma(row[$j] - mean, row[$j] - mean, squares); }
#end j
  return vec2f(mean, 1.0 / sqrt(sums_over(vec2f(sum_of_four(squares), 0.0), thread).x / f32(4u * FOURS) + eps));
}

/** The same of two rows at once: what takes long is that threads meet. */
fn stats_of(row: array<vec4f, EACH>, other: array<vec4f, EACH>, eps: f32, thread: u32) -> array<vec2f, 2> {
  var sum = array<vec4f, 2>();
#repeat j EACH
  if ($ju * WG + thread < FOURS) {
    sum[0] += row[$j];
    sum[1] += other[$j];
  }
#end j
  let means = sums_over(sums_of(sum), thread) / f32(4u * FOURS);
  var squares = array<vec4f, 2>();
#repeat j EACH
  if ($ju * WG + thread < FOURS) {
    squares[0] = fma(row[$j] - means.x, row[$j] - means.x, squares[0]);
    squares[1] = fma(other[$j] - means.y, other[$j] - means.y, squares[1]);
  }
#end j
  let factors = 1.0 / sqrt(sums_over(sums_of(squares), thread) / f32(4u * FOURS) + eps);
  return array<vec2f, 2>(vec2f(means.x, factors.x), vec2f(means.y, factors.y));
}

fn sums_of(fours: array<vec4f, 2>) -> vec2f { return vec2f(sum_of_four(fours[0]), sum_of_four(fours[1])); }
fn sum_of_four(x: vec4f) -> f32 { return x.x + x.y + x.z + x.w; }
