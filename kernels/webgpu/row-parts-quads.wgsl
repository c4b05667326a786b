// The four threads of a quad share a row of the state; each has what two of row-parts-eights.wgsl have, and adds in their order.
// Only the subgroup tells which threads form a quad.
#include "entry-subgroups.wgsl"
const SHARES = 2u;
fn own_index(thread: u32) -> u32 { return subgroup * lanes + lane; }

fn sum_of_row(x: array<vec4f, SHARES>) -> f32 {
  let one = sum4(x[0]) + sum4(x[1]);
  let two = one + quadSwapX(one);
  return two + quadSwapY(two);
}
