// 4-bit integer weights as bytes of dot products: a unit is a group of 32 inputs, which have one scale. A weight, stored + 8, is
// the higher half of a byte, whose highest bit is turned: sixteen times the weight.
const UNIT = 32u;
#include "dots-q4-order.wgsl"
#include "scales.wgsl"

struct Group {
  all: vec4u,
}

fn group_at(job: Job, first: u32, group: u32) -> Group { return Group(weights[first + group * BLOCK]); }

fn scale_of(job: Job, block: u32, row: u32, group: u32) -> f32 { return scale_at(job, block, row, 1u, group); }

/** Weights of eight inputs, in two words: of those at even places, and of the others. */
fn eight(word: u32) -> vec2u { return (vec2u(word << 4u, word) & vec2u(0xf0f0f0f0u)) ^ vec2u(0x80808080u); }
fn eight0(own: Group) -> vec2u { return eight(own.all.x); }
fn eight1(own: Group) -> vec2u { return eight(own.all.y); }
fn eight2(own: Group) -> vec2u { return eight(own.all.z); }
fn eight3(own: Group) -> vec2u { return eight(own.all.w); }
