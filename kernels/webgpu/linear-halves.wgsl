// Inputs of products by matrices as f16, once for all tiles that read them, with zeros behind a row. The matrices of SIDE tokens
// by SIDE inputs lie one after the other: [tokens / SIDE, inputs / SIDE, SIDE, SIDE].
enable f16;
#include "linear-sources.wgsl"
#include "halves.wgsl"

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
    if (k < source.columns && t < count) { eight = vec4u(bitcast<vec2u>(halves_of(arena[place])), bitcast<vec2u>(halves_of(arena[place + 1u]))); }
    rounded[source.to + at] = eight;
  }
}
