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
  let x = p.x + t * CHANNELS;
  let row = (token - p.first_row) * CHANNELS;
  var own: array<f32, EACH>;
#repeat j EACH
  own[$j] = element(row + min($ju * WG + thread, CHANNELS - 1u));
#end j
  let weights = row_at(p.weight, thread);
  let biases = row_at(p.bias, thread);
  let stats = stats_of(own, p.eps, thread);
#repeat j EACH
  if ($ju * WG + thread < CHANNELS) { arena[x + $ju * WG + thread] = (own[$j] - stats.x) * stats.y * weights[$j] + biases[$j]; }
#end j
}
