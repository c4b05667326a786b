// The four threads of a quad share a row of the state. Only the subgroup tells which threads form a quad.
#include "entry-subgroups.wgsl"
fn own_index(thread: u32) -> u32 { return subgroup * lanes + lane; }

fn sum_of_row(x: f32) -> f32 {
  let two = x + quadSwapX(x);
  return two + quadSwapY(two);
}
