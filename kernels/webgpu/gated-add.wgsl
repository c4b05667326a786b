// x += gate·value. One thread per element.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  x: u32,
  gate: u32,
  value: u32,
  channels: u32,
}
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let i = id.x;
  if (i >= num_tokens() * p.channels) { return; }
  arena[p.x + i] = fma(arena[p.gate + i], arena[p.value + i], arena[p.x + i]);
}
