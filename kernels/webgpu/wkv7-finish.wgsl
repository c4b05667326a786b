// Norms and gates the outputs of a prompt's states, all tokens at once.
#include "wkv7-params.wgsl"
const THREADS = HEADS * N4;
const HELD = THREADS;
#include "wkv7-fours.wgsl"
#include KEPT

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let fours_of_token = p.channels / 4u;
  let end = num_tokens() * fours_of_token;
  let own = group.x * THREADS + thread;
  let at = min(own, end - 1u);
  let c = at % fours_of_token;
  let y = arena[p.out / 4u + at];
  let v = arena[p.v / 4u + at];
  let g = arena[p.g / 4u + at];
  let gain = arena[p.gain / 4u + c];
  let bias = arena[p.bias / 4u + c];
  fours[thread] = y;
  others[thread] = arena[p.r / 4u + at] * arena[p.k / 4u + at] * arena[p.r_k / 4u + c];
  workgroupBarrier();
  let result = gated(thread / N4 * N4, y, v, g, gain, bias);
  if (own >= end) { return; }
  arena[p.out / 4u + at] = result;
  keep_four(0u, p.kept, p.channels, at / fours_of_token, 4u * c, result);
}
