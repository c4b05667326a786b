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
  let out = p.out + r * p.channels;
  for (var i = r; i < r + count; i++) {
    let at = p.x + logit_token(i) * p.channels;
    let stats = row_stats(at, p.channels, p.eps, thread);
    let share = select(blend_weight(i), 1.0, count == 1u);
    for (var c = thread; c < p.channels; c += WG) {
      let h = (arena[at + c] - stats.x) * stats.y * arena[p.weight + c] + arena[p.bias + c];
      let sum = select(arena[out + c], 0.0, i == r);
      let blend = sum + share * h;
      arena[out + c] = blend;
      if (i + 1u == r + count) { keep_half(p.halves, p.channels, r, c, blend); }
    }
  }
}
