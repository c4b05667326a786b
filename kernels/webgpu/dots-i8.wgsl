// 8-bit integer weights as bytes of dot products: two units are a group of 32 inputs, which have one scale.
const UNIT = 16u;
#include "dots-i8-order.wgsl"
#include "scales.wgsl"

struct Group {
  first: vec4u,
  second: vec4u,
}

fn group_at(job: Job, first: u32, group: u32) -> Group {
  let last = job.units - 1u;
  return Group(weights[first + min(2u * group, last) * BLOCK], weights[first + min(2u * group + 1u, last) * BLOCK]);
}

fn scale_of(job: Job, block: u32, row: u32, group: u32) -> f32 { return scale_at(job, block, row, 2u, 2u * group); }

/** Weights of eight inputs, in two words. */
fn eight0(own: Group) -> vec2u { return own.first.xy; }
fn eight1(own: Group) -> vec2u { return own.first.zw; }
fn eight2(own: Group) -> vec2u { return own.second.xy; }
fn eight3(own: Group) -> vec2u { return own.second.zw; }
