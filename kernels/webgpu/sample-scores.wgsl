// Scores of the samples, of which each slot's first are drawn next: a workgroup a chunk of the vocabulary.
#include "draw.wgsl"

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let s = group.y;
  if (is_idle(s) || !is_first(s)) { return; }
  make_scores(s, group.x, p.groups, thread);
}
