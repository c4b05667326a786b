// sums.wgsl with subgroups: each adds up its own values, then the sums of the subgroups are added up.
const THREADS = WG;
#include "entry-subgroups.wgsl"
/** In turns: who still reads one has not passed the barrier of the next. */
var<workgroup> partial_sums: array<array<vec2f, WG>, 2>;
var<private> turn: u32;

fn sums_over(values: vec2f, thread: u32) -> vec2f {
  turn = 1u - turn;
  let own = subgroupAdd(values);
  if (lane == 0u) { partial_sums[turn][subgroup] = own; }
  workgroupBarrier();
  var sums = vec2f();
  for (var i = lane; i < subgroups; i += lanes) { sums += partial_sums[turn][i]; }
  return subgroupAdd(sums);
}
