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
