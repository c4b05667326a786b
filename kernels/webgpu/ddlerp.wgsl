// mix[i] ← h + (prev − h)·(base[i] + mix[i]). One thread per element, the mixes along y.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  h: u32,
  prev: u32,
  channels: u32,
  pad0: u32,
  mix: array<vec4u, 2>,
  base: array<vec4u, 2>,
}
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let i = id.x;
  if (i >= num_tokens() * p.channels) { return; }
  let m = id.y;
  let at = p.mix[m >> 2u][m & 3u] + i;
  let base = arena[p.base[m >> 2u][m & 3u] + i % p.channels];
  let h = arena[p.h + i];
  arena[at] = fma(arena[p.prev + i] - h, base + arena[at], h);
}
