// Sums and the best over all threads of a workgroup.
const THREADS = WG;
#include "entry.wgsl"
var<workgroup> shared_u: array<vec4u, WG>;
var<workgroup> shared_f: array<vec4f, WG>;

/** Sums over all threads, the same for each. */
fn sum_all(u: vec4u, f: vec4f, thread: u32) -> array<vec4u, 2> {
  shared_u[thread] = u;
  shared_f[thread] = f;
  workgroupBarrier();
  // Each time an eighth of them adds up eight.
  for (var left = WG; left > 1u; left = (left + 7u) / 8u) {
    let next = (left + 7u) / 8u;
    if (thread < next) {
      var a = shared_u[thread];
      var b = shared_f[thread];
      for (var i = thread + next; i < left; i += next) {
        a += shared_u[i];
        b += shared_f[i];
      }
      shared_u[thread] = a;
      shared_f[thread] = b;
    }
    workgroupBarrier();
  }
  let a = shared_u[0];
  let b = shared_f[0];
  workgroupBarrier();
  return array<vec4u, 2>(a, bitcast<vec4u>(b));
}

/** The best (key, id) of all threads. */
fn best_of_all(own: vec2u, thread: u32) -> vec2u {
  shared_u[thread] = vec4u(own, 0u, 0u);
  workgroupBarrier();
  for (var half = WG / 2u; half > 0u; half >>= 1u) {
    if (thread < half && is_before(shared_u[thread + half].xy, shared_u[thread].xy)) {
      shared_u[thread] = shared_u[thread + half];
    }
    workgroupBarrier();
  }
  let best = workgroupUniformLoad(&shared_u[0]);
  workgroupBarrier();
  return best.xy;
}
