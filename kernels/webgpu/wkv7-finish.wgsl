// Norms and gates the outputs of a prompt's states, all tokens at once.
#include "wkv7-params.wgsl"
#include "wkv7-token.wgsl"
#include HALVES

@compute @workgroup_size(N)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) i: u32) {
  let c = group.x * N + i;
  let at = group.y * p.channels + c;
  let y = arena[p.out + at];
  shared_y[i] = y;
  shared_bonus[i] = arena[p.r + at] * arena[p.k + at] * arena[p.r_k + c];
  workgroupBarrier();
  let result = gated(i, y, arena[p.v + at], arena[p.g + at], arena[p.gain + c], arena[p.bias + c]);
  arena[p.out + at] = result;
  keep_half(p.halves, p.channels, group.y, c, result);
}
