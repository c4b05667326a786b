// Inputs of products by matrices as f16, once for all tiles that read them, with zeros behind a row. The matrices of SIDE tokens
// by SIDE inputs lie one after the other: [tokens / SIDE, inputs / SIDE, SIDE, SIDE].
enable f16;
#include "step.wgsl"

struct Source {
  x: u32,
  columns: u32,
  to: u32, // in vectors of eight
  eights: u32, // of a row with its zeros
}
struct Params {
  of_logits: u32,
  pad0: u32,
  pad1: u32,
  pad2: u32,
  sources: array<Source, 8>,
}
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read_write> halves: array<vec4u>;

/** What is beyond the range of f16 is its largest number; NaN stays. */
fn half_of(x: vec4f) -> vec2u {
  let is_number = (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) <= vec4u(0x7f800000u);
  return bitcast<vec2u>(vec4h(select(x, clamp(x, vec4f(-65504.0), vec4f(65504.0)), is_number)));
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let source = p.sources[group.y];
  let count = select(num_tokens(), num_logits(), p.of_logits == 1u);
  let end = (count + SIDE - 1u) / SIDE * SIDE * source.eights;
  for (var at = group.x * WG + thread; at < end; at += groups.x * WG) {
    // Of eight: in a row of a matrix, and in a row of matrices.
    let wide = SIDE / 8u;
    let row = at / (SIDE * source.eights);
    let in_row = at % (SIDE * source.eights);
    let t = row * SIDE + in_row / wide % SIDE;
    let k = 8u * (in_row / (SIDE * wide) * wide + in_row % wide);
    let place = (source.x + t * source.columns + k) >> 2u;
    var eight = vec4u();
    if (k < source.columns && t < count) { eight = vec4u(half_of(arena[place]), half_of(arena[place + 1u])); }
    halves[source.to + at] = eight;
  }
}
