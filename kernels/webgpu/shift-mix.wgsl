// Layer norm, token shift and mixes. The workgroups of a token along y have the same statistics and a part of the channels
// each. Those of a row's first token read the slot's shift vector and then write it, which is the normed last token of the
// row: nobody else looks at their part of it in this launch. All in vectors of four. SINGLE: each row has one token, so nothing is
// looked up before that is normed.
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
  outputs: u32, // OUTPUTS at most
  pad1: u32,
  pad2: u32,
  out: array<vec4u, 2>,
  mix: array<vec4u, 2>,
  kept: array<vec4u, 2>, // kept-halves.wgsl, kept-bytes.wgsl
}
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read_write> states: array<vec4f>;
const FOURS = CHANNELS / 4u;
#include "norm-fours.wgsl"
fn kept_at(i: u32) -> u32 { return p.kept[i >> 2u][i & 3u]; }
#include KEPT

/** What four channels are normed by and mixed with. */
struct Own {
  x: vec4f,
  weight: vec4f,
  bias: vec4f,
  held: vec4f, // of the slot
  mixes: array<vec4f, OUTPUTS>,
}

fn own_at(at: u32, state: u32, c: u32) -> Own {
  var own: Own;
  own.x = arena[(at + c) / 4u];
  own.weight = arena[(p.weight + c) / 4u];
  own.bias = arena[(p.bias + c) / 4u];
  own.held = states[(state + c) / 4u];
#repeat i OUTPUTS
  if ($iu < p.outputs) { own.mixes[$i] = arena[(p.mix[$iu >> 2u][$iu & 3u] + c) / 4u]; }
#end i
  return own;
}

fn normed(x: vec4f, stats: vec2f, own: Own) -> vec4f { return (x - stats.x) * stats.y * own.weight + own.bias; }

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let t = group.x;
  // Whole groups of what is kept as bytes.
  let part = 32u * (((CHANNELS + 31u) / 32u + groups.y - 1u) / groups.y);
  let first = group.y * part + 4u * thread;
  let after = min((group.y + 1u) * part, CHANNELS);
  let at = p.x + t * CHANNELS;
  // All that a step of one token needs is asked for before the sums are made.
  let row = row_at(at, thread);
  let isFirst = SINGLE == 1u || t == token_start(t);
  var other = at;
  var other_row = row;
  if (SINGLE == 0u) {
    // A row's first token writes what its last is normed to; any other needs the token before.
    other = select(at - CHANNELS, p.x + (token_end(t) - 1u) * CHANNELS, isFirst);
    other_row = row_at(other, thread);
  }
  let state = min(token_slot(t), p.slots) * p.slot_size + p.shift;
  var own = own_at(at, state, min(first, CHANNELS - 4u));
  var stats = array<vec2f, 2>();
  if (SINGLE == 1u) { stats[0] = stats_of_one(row, p.eps, thread); } else { stats = stats_of(row, other_row, p.eps, thread); }
  for (var c = first; c < after; c += 4u * WG) {
    if (c != first) { own = own_at(at, state, c); }
    let h = normed(own.x, stats[0], own);
    var others = h;
    if (SINGLE == 0u) { others = normed(arena[(other + c) / 4u], stats[1], own); }
    let d = select(others, own.held, isFirst) - h;
#repeat i OUTPUTS
    if ($iu < p.outputs) {
      let out = fma(d, own.mixes[$i], h);
      if (is_whole(p.kept[$iu >> 2u][$iu & 3u])) { arena[(p.out[$iu >> 2u][$iu & 3u] + t * CHANNELS + c) / 4u] = out; }
      keep_four($iu, p.kept[$iu >> 2u][$iu & 3u], CHANNELS, t, c, out);
    }
#end i
    if (isFirst) { states[(state + c) / 4u] = others; }
  }
  keep_all(CHANNELS, t, 0u, group.y * part, after, thread);
}
