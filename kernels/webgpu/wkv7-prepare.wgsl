// Prepares the recurrence of a prompt, all tokens at once: w becomes the decay; k, v and a become the recurrence's
// operands.
#include "wkv7-params.wgsl"
#include "wkv7-token.wgsl"

@compute @workgroup_size(N)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) i: u32) {
  let c = group.x * N + i;
  let at = group.y * p.channels + c;
  let k = arena[p.k + at];
  let a = arena[p.a + at];
  var v = arena[p.v + at];
  let w = arena[p.w + at];
  raw[i] = k * arena[p.k_k + c];
  workgroupBarrier();
  let kk = raw[i] / length_of_raw(i);
  if (p.has_gate == 1u) {
    v = fma(arena[p.v_first + at] - v, arena[p.v_gate + at], v);
    arena[p.v + at] = v;
  } else {
    arena[p.v_first + at] = v;
  }
  arena[p.k + at] = key_of(k, a, arena[p.k_a + c]);
  arena[p.a + at] = kk * a;
  arena[p.kk + at] = kk;
  arena[p.w + at] = decay_of(w);
}
