// out[r] = LN(x[logitRows[r]]), or the weighted sum of several such rows. The workgroups of a logit row along y have a part of
// the channels each. All in vectors of four.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
struct Params {
  out: u32,
  x: u32,
  channels: u32,
  weight: u32,
  bias: u32,
  eps: f32,
  kept: u32, // kept-halves.wgsl, kept-bytes.wgsl
  pad0: u32,
}
@group(1) @binding(0) var<uniform> p: Params;
const FOURS = CHANNELS / 4u;
#include "norm-fours.wgsl"
fn kept_at(i: u32) -> u32 { return p.kept; }
#include KEPT

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let r = group.x;
  // Whole groups of what is kept as bytes.
  let part = 32u * (((CHANNELS + 31u) / 32u + groups.y - 1u) / groups.y);
  let first = group.y * part;
  let after = min(first + part, CHANNELS);
  let count = max(blend_count(r), 1u);
  let weights = row_at(p.weight, thread);
  let biases = row_at(p.bias, thread);
  var sums: array<vec4f, EACH>;
  for (var i = r; i < r + count; i++) {
    let row = row_at(p.x + logit_token(i) * CHANNELS, thread);
    let stats = stats_of_one(row, p.eps, thread);
    let share = select(blend_weight(i), 1.0, count == 1u);
#repeat j EACH
    sums[$j] += share * ((row[$j] - stats.x) * stats.y * weights[$j] + biases[$j]);
#end j
  }
#repeat j EACH
  let c$j = 4u * ($ju * WG + thread);
  if (c$j >= first && c$j < after) {
    arena[(p.out + r * CHANNELS + c$j) / 4u] = sums[$j];
    keep_four(0u, p.kept, CHANNELS, r, c$j, sums[$j]);
  }
#end j
  keep_all(CHANNELS, r, 0u, first, after, thread);
}
