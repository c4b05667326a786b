// A state's row is shared by the four threads of a quad. Which threads these are only their subgroup says.
#include "entry-subgroups.wgsl"
fn own_index(thread: u32) -> u32 { return subgroup * lanes + lane; }

fn sum_of_row(x: f32) -> f32 {
  let two = x + quadSwapX(x);
  return two + quadSwapY(two);
}
