// out[r] = LN(x[logitRows[r]]), or the weighted sum of several such rows. One workgroup per logit row.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  out: u32,
  x: u32,
  channels: u32,
  weight: u32,
  bias: u32,
  eps: f32,
  halves: u32, // halves-write.wgsl
  pad0: u32,
}
@group(1) @binding(0) var<uniform> p: Params;
#include "norm.wgsl"
#include HALVES

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let r = group.x;
  let count = max(blend_count(r), 1u);
  let out = p.out + r * CHANNELS;
  let weights = row_at(p.weight, thread);
  let biases = row_at(p.bias, thread);
  var sums: array<f32, EACH>;
  for (var i = r; i < r + count; i++) {
    let row = row_at(p.x + logit_token(i) * CHANNELS, thread);
    let stats = stats_of(row, p.eps, thread);
    let share = select(blend_weight(i), 1.0, count == 1u);
#repeat j EACH
    sums[$j] += share * ((row[$j] - stats.x) * stats.y * weights[$j] + biases[$j]);
#end j
  }
#repeat j EACH
  if ($ju * WG + thread < CHANNELS) {
    arena[out + $ju * WG + thread] = sums[$j];
    keep_half(p.halves, CHANNELS, r, $ju * WG + thread, sums[$j]);
  }
#end j
}
