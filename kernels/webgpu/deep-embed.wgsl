// DeepEmbed of RWKV-7a: M = own[t] + rows[t], as [S, S]; u[t] *= s0 + (low[t]·M)·s2. The rows are
// those of the step's tokens in the host's table. Workgroups [T, parts of F]; each computes low[t]·M itself.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  u: u32,
  low: u32,
  own: u32,
  s2: u32,
  s0: u32,
  channels: u32,
}
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read> rows: array<u32>;

var<workgroup> by: array<f32, SIDE>;

fn element(i: u32) -> f32 {
  if (DTYPE == 0u) { return bitcast<f32>(rows[i]); }
  let word = rows[i >> 1u];
  if (DTYPE == 1u) { return unpack2x16float(word)[i & 1u]; }
  return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (i & 1u) == 1u));
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let t = group.x;
  for (var j = thread; j < SIDE; j += WG) {
    var sum = 0.0;
    for (var i = 0u; i < SIDE; i++) {
      let at = (t * SIDE + i) * SIDE + j;
      sum = fma(arena[p.low + t * SIDE + i], element(at) + arena[p.own + at], sum);
    }
    by[j] = sum;
  }
  workgroupBarrier();
  for (var f = group.y * WG + thread; f < p.channels; f += groups.y * WG) {
    var factor = arena[p.s0 + f];
    for (var j = 0u; j < SIDE; j++) { factor = fma(by[j], arena[p.s2 + j * p.channels + f], factor); }
    arena[p.u + t * p.channels + f] *= factor;
  }
}
