// Prepares the recurrence of a prompt, all tokens at once: w becomes the decay; k, v and a become the recurrence's
// operands.
#include "wkv7-params.wgsl"
#include "wkv7-fours.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let end = num_tokens() * p.channels / 4u;
  let own = group.x * THREADS + thread;
  let at = min(own, end - 1u);
  let c = at % (p.channels / 4u);
  let k = arena[p.k / 4u + at];
  let a = arena[p.a / 4u + at];
  var v = arena[p.v / 4u + at];
  let w = arena[p.w / 4u + at];
  let raw = k * arena[p.k_k / 4u + c];
  if (p.has_gate == 1u) { v = fma(arena[p.v_first / 4u + at] - v, arena[p.v_gate / 4u + at], v); }
  fours[thread] = raw;
  workgroupBarrier();
  var squares = vec4f();
#repeat q N4
  let raw$q = fours[thread / N4 * N4 + $qu];
  squares = fma(raw$q, raw$q, squares);
#end q
  if (own >= end) { return; }
  let kk = raw / max(sqrt(sum4(squares)), 1e-12);
  if (p.has_gate == 1u) { arena[p.v / 4u + at] = v; } else { arena[p.v_first / 4u + at] = v; }
  arena[p.k / 4u + at] = key_of(k, a, arena[p.k_a / 4u + c]);
  arena[p.a / 4u + at] = kk * a;
  arena[p.kk / 4u + at] = kk;
  arena[p.w / 4u + at] = decay_of(w);
}
