// Beside the products of linear-matrix.wgsl, in the same launch: some with 16-bit weights, eight to a unit.
@group(1) @binding(4) var<storage, read> others: array<vec4u>;
#include PAIRS

fn is_beside(job: Job) -> bool { return job.is_beside == 1u; }

/** As weights_at. */
fn others_at(job: Job, block: u32, blocks: u32, index: u32, first: u32) -> vec4u {
  let own = min(block + index / (BLOCK * EIGHTS), blocks - 1u);
  let unit = min(first + index / BLOCK % EIGHTS, job.units - 1u);
  return others[job.weight + (own * job.units + unit) * BLOCK + index % BLOCK];
}

fn keep_others(index: u32, bits: vec4u) {
  let row = index / (BLOCK * EIGHTS) * BLOCK + index % BLOCK;
  let eight = index / BLOCK % EIGHTS;
  let first = vec4h(vec4f(pair(bits.x), pair(bits.y)));
  let second = vec4h(vec4f(pair(bits.z), pair(bits.w)));
  tiles[eight / OWN_EIGHTS * TEAM_TILES + row / SIDE][row % SIDE * STRIDE + eight % OWN_EIGHTS] = vec4u(bitcast<vec2u>(first), bitcast<vec2u>(second));
}
