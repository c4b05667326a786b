// Eight threads share a row of the state.
#include "entry-subgroups.wgsl"
const SHARES = 1u;
fn own_index(thread: u32) -> u32 { return subgroup * lanes + lane; }

fn sum_of_row(x: array<vec4f, SHARES>) -> f32 {
  let own = sum4(x[0]);
  let one = own + subgroupShuffleXor(own, 4u);
  let two = one + quadSwapX(one);
  return two + quadSwapY(two);
}

/** Of two rows: in four threads the sum of the first, in the others that of the second. */
fn sum_of_either(first: array<vec4f, SHARES>, second: array<vec4f, SHARES>, is_second: bool) -> f32 {
  let a = sum4(first[0]);
  let b = sum4(second[0]);
  let one = select(a, b, is_second) + subgroupShuffleXor(select(b, a, is_second), 4u);
  let two = one + quadSwapX(one);
  return two + quadSwapY(two);
}
