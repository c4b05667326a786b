// x[t] = LN(table[tokens[t]]). One workgroup per token. A large table has several parts, and each part handles its own
// tokens.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  x: u32,
  channels: u32,
  first_row: u32,
  rows: u32,
  weight: u32,
  bias: u32,
  eps: f32,
  table: u32, // in words
}
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read> table: array<u32>;
#include "norm.wgsl"

fn element(i: u32) -> f32 {
  if (DTYPE == 0u) { return bitcast<f32>(table[p.table + i]); }
  let word = table[p.table + (i >> 1u)];
  if (DTYPE == 1u) { return unpack2x16float(word)[i & 1u]; }
  return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (i & 1u) == 1u));
}

fn run(group: vec3u, groups: vec3u, thread: u32) {
  let t = group.x;
  let token = token_id(t);
  if (token < p.first_row || token >= p.first_row + p.rows) { return; }
  let x = p.x + t * p.channels;
  let row = (token - p.first_row) * p.channels;
  // Each thread reads only what it wrote itself.
  for (var c = thread; c < p.channels; c += WG) { arena[x + c] = element(row + c); }
  let stats = row_stats(x, p.channels, p.eps, thread);
  for (var c = thread; c < p.channels; c += WG) {
    arena[x + c] = (arena[x + c] - stats.x) * stats.y * arena[p.weight + c] + arena[p.bias + c];
  }
}
