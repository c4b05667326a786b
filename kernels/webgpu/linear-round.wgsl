// Inputs of dot products of bytes, rounded once for all workgroups that read them: of each token [PARTS, groups] vectors, each of
// eight inputs, then the units of its groups.
#include "linear-sources.wgsl"
const PARTS = 4u;
#include ORDER
#include "dots-round.wgsl"
var<workgroup> largest: array<u32, WG>;

/** Of the group whose first thread it is. */
fn most_of(first: u32) -> u32 {
  return max(max(largest[first], largest[first + 1u]), max(largest[first + 2u], largest[first + 3u]));
}
fn unit_from(first: u32) -> f32 { return scale_of_inputs(most_of(first)); }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let source = p.sources[group.x / p.groups_each];
  let groups = (source.columns + 31u) / 32u;
  let at = group.x % p.groups_each * WG + thread;
  let t = group.y;
  let k = 8u * at;
  let place = (source.x + t * source.columns + k) >> 2u;
  var a = vec4f();
  var b = vec4f();
  if (k + 4u <= source.columns) { a = arena[place]; }
  if (k + 8u <= source.columns) { b = arena[place + 1u]; }
  largest[thread] = largest_of(a, b);
  workgroupBarrier();
  let g = at / PARTS;
  if (g >= groups) { return; }
  let to = source.to + t * (PARTS * groups + (groups + 3u) / 4u);
  rounded[to + thread % PARTS * groups + g] = rounded_eight(a, b, most_of(thread / PARTS * PARTS));
  if (thread % (4u * PARTS) == 0u) {
    let four = vec4f(unit_from(thread), unit_from(thread + PARTS), unit_from(thread + 2u * PARTS), unit_from(thread + 3u * PARTS));
    rounded[to + PARTS * groups + g / 4u] = bitcast<vec4u>(four);
  }
}
