// For samples that will have a token: their counts decay, and those that are drawn by their mass get bins of the scores that
// sample-scores.wgsl made.
#include "draw.wgsl"

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let s = group.y;
  if (is_idle(s) || !is_first(s)) { return; }
  let best = best_of_groups(s, p.groups, thread);
  if (!has_token(best)) { return; }
  decay_counts(s, group.x, p.groups, thread);
  if (is_drawn_by_mass(s)) { fill_bins(s, best.x, group.x, p.groups, thread); }
}
