// The sums over all threads of a workgroup, of two numbers of each; each thread gets them.
const THREADS = WG;
#include "entry.wgsl"
/** In turns: who still reads one has not passed the barriers of the next. */
var<workgroup> partial_sums: array<array<vec2f, WG>, 2>;
var<private> turn: u32;

fn sums_over(values: vec2f, thread: u32) -> vec2f {
  turn = 1u - turn;
  partial_sums[turn][thread] = values;
  workgroupBarrier();
  if (thread < 16u) {
    var sums = vec2f();
    for (var i = thread; i < WG; i += 16u) { sums += partial_sums[turn][i]; }
    partial_sums[turn][thread] = sums;
  }
  workgroupBarrier();
  var totals = vec2f();
  for (var i = 0u; i < 16u; i++) { totals += partial_sums[turn][i]; }
  return totals;
}
