// One thread has a whole row of the state.
#include "entry.wgsl"
fn own_index(thread: u32) -> u32 { return thread; }
fn sum_of_row(x: f32) -> f32 { return x; }
