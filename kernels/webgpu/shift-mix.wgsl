// Layer norm, token shift and mixes. The workgroups of a token along y have the same statistics and a part of the channels
// each. Those of a row's first token read the slot's shift vector and then write it, which is the normed last token of the
// row: nobody else looks at their part of it in this launch. All in vectors of four.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
struct Params {
  x: u32,
  channels: u32,
  weight: u32,
  bias: u32,
  eps: f32,
  pad3: u32,
  shift: u32, // within a slot
  slot_size: u32,
  slots: u32,
  pad0: u32,
  pad1: u32,
  pad2: u32,
  out: array<vec4u, 2>,
  mix: array<vec4u, 2>,
  halves: array<vec4u, 2>, // halves-write.wgsl
}
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read_write> states: array<vec4f>;
#include "norm-fours.wgsl"
#include HALVES

/** Four channels of a row. */
fn normed(at: u32, stats: vec2f, c: u32) -> vec4f {
  return (arena[(at + c) / 4u] - stats.x) * stats.y * arena[(p.weight + c) / 4u] + arena[(p.bias + c) / 4u];
}

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let t = group.x;
  let part = 4u * ((p.channels / 4u + groups.y - 1u) / groups.y);
  let first = group.y * part + 4u * thread;
  let after = min((group.y + 1u) * part, p.channels);
  let isFirst = t == token_start(t);
  let at = p.x + t * p.channels;
  let state = min(token_slot(t), p.slots) * p.slot_size + p.shift;
  let stats = row_stats(at, p.channels, p.eps, thread);
  var before = vec2f();
  if (!isFirst) { before = row_stats(at - p.channels, p.channels, p.eps, thread); }
  for (var c = first; c < after; c += 4u * WG) {
    let h = normed(at, stats, c);
    var d = -h;
    if (isFirst) { d += states[(state + c) / 4u]; } else { d += normed(at - p.channels, before, c); }
    // All are read before any is written: what is written might be what is read, for all a compiler knows.
#repeat i OUTPUTS
    let mix$i = arena[(p.mix[$iu >> 2u][$iu & 3u] + c) / 4u];
#end i
#repeat i OUTPUTS
    let out$i = fma(d, mix$i, h);
    arena[(p.out[$iu >> 2u][$iu & 3u] + t * p.channels + c) / 4u] = out$i;
    keep_four(p.halves[$iu >> 2u][$iu & 3u], p.channels, t, c, out$i);
#end i
  }
  if (!isFirst) { return; }
  let last = p.x + (token_end(t) - 1u) * p.channels;
  var end = stats;
  if (last != at) { end = row_stats(last, p.channels, p.eps, thread); }
  for (var c = first; c < after; c += 4u * WG) { states[(state + c) / 4u] = normed(last, end, c); }
}
