// sample-sums.wgsl by subgroups.
const THREADS = WG;
#include "entry-subgroups.wgsl"
var<workgroup> shared_u: array<vec4u, WG>;
var<workgroup> shared_f: array<vec4f, WG>;

fn sum_all(u: vec4u, f: vec4f, thread: u32) -> array<vec4u, 2> {
  let own_u = subgroupAdd(u);
  let own_f = subgroupAdd(f);
  if (lane == 0u) {
    shared_u[subgroup] = own_u;
    shared_f[subgroup] = own_f;
  }
  workgroupBarrier();
  var a = vec4u();
  var b = vec4f();
  for (var i = lane; i < subgroups; i += lanes) {
    a += shared_u[i];
    b += shared_f[i];
  }
  let total_u = subgroupAdd(a);
  let total_f = subgroupAdd(b);
  workgroupBarrier();
  return array<vec4u, 2>(total_u, bitcast<vec4u>(total_f));
}

/** The best (key, id) of a subgroup. */
fn best_of_subgroup(own: vec2u) -> vec2u {
  let key = subgroupMax(own.x);
  return vec2u(key, subgroupMin(select(NOTHING, own.y, own.x == key)));
}

fn best_of_all(own: vec2u, thread: u32) -> vec2u {
  let first = best_of_subgroup(own);
  if (lane == 0u) { shared_u[subgroup] = vec4u(first, 0u, 0u); }
  workgroupBarrier();
  var best = vec2u(0u, NOTHING);
  for (var i = lane; i < subgroups; i += lanes) {
    if (is_before(shared_u[i].xy, best)) { best = shared_u[i].xy; }
  }
  best = best_of_subgroup(best);
  workgroupBarrier();
  if (thread == 0u) { shared_u[0] = vec4u(best, 0u, 0u); }
  let answer = workgroupUniformLoad(&shared_u[0]);
  workgroupBarrier();
  return answer.xy;
}
