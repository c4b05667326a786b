// Norms and gates the outputs of a prompt's states, all tokens at once.
#include "wkv7-params.wgsl"
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
  var total = vec4f();
  var bonus = vec4f();
#repeat q N4
  let y$q = fours[thread / N4 * N4 + $qu];
  total += y$q;
  bonus += others[thread / N4 * N4 + $qu];
#end q
  let mean = sum4(total) / f32(N);
  var variance = vec4f();
#repeat q N4
  variance = fma(y$q - mean, y$q - mean, variance);
#end q
  if (own >= end) { return; }
  let normed = (y - mean) / sqrt(sum4(variance) / f32(N) + p.eps);
  let result = fma(vec4f(sum4(bonus)), v, fma(normed, gain, bias)) * g;
  if (is_whole(p.kept)) { arena[p.out / 4u + at] = result; }
  keep_four(0u, p.kept, p.channels, at / fours_of_token, 4u * c, result);
}
