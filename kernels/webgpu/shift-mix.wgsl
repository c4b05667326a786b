// Layer norm, token shift and mixes. One workgroup a token. That of a row's first token reads the slot's shift vector and
// then writes it, which is the normed last token of the row: nobody else looks at it in this launch.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  x: u32,
  channels: u32,
  weight: u32,
  bias: u32,
  eps: f32,
  outputs: u32,
  shift: u32, // within a slot
  slot_size: u32,
  slots: u32,
  pad0: u32,
  pad1: u32,
  pad2: u32,
  out: array<vec4u, 2>,
  mix: array<vec4u, 2>,
}
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read_write> states: array<f32>;
#include "norm.wgsl"

fn normed(at: u32, stats: vec2f, c: u32) -> f32 {
  return (arena[at + c] - stats.x) * stats.y * arena[p.weight + c] + arena[p.bias + c];
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let t = group.x;
  let row = token_row(t);
  let isFirst = t == row_start(row);
  let at = p.x + t * p.channels;
  let state = min(row_slot(row), p.slots) * p.slot_size + p.shift;
  let stats = row_stats(at, p.channels, p.eps, thread);
  var before = vec2f();
  if (!isFirst) { before = row_stats(at - p.channels, p.channels, p.eps, thread); }
  for (var c = thread; c < p.channels; c += WG) {
    let h = normed(at, stats, c);
    var d = -h;
    if (isFirst) { d += states[state + c]; } else { d += normed(at - p.channels, before, c); }
    for (var i = 0u; i < p.outputs; i++) {
      let mix = arena[p.mix[i >> 2u][i & 3u] + c];
      arena[p.out[i >> 2u][i & 3u] + t * p.channels + c] = fma(d, mix, h);
    }
  }
  if (!isFirst) { return; }
  let last = p.x + (row_start(row + 1u) - 1u) * p.channels;
  var end = stats;
  if (last != at) { end = row_stats(last, p.channels, p.eps, thread); }
  for (var c = thread; c < p.channels; c += WG) { states[state + c] = normed(last, end, c); }
}
