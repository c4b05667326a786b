// Inputs of a product, which a launch before rounds once for all workgroups that read them.
#include "step.wgsl"
struct Source {
  x: u32,
  columns: u32,
  to: u32, // in vectors of 16 bytes
  eights: u32, // of a row of linear-halves.wgsl with its zeros
}
struct Params {
  of_logits: u32,
  groups_each: u32, // workgroups of linear-round.wgsl for a source
  pad0: u32,
  pad1: u32,
  sources: array<Source, 8>,
}
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read_write> rounded: array<vec4u>;
