// 4-bit integer weights, stored + 8: 32 per unit, with one scale.
const UNIT = 32u;
const STEPS = 4u;
const QUADS = 2u;
#include "scales.wgsl"

fn scale_of(job: Job, block: u32, row: u32, unit: u32) -> f32 { return scale_at(job, block, row, 1u, unit); }
fn next_step(bits: vec4u) -> vec4u { return bits.yzww; }

/** Four bits become the highest of a fraction: 1 + (i + 8) / 16, of which the rest is exact. */
fn four(bits: vec4u, scale: f32) -> vec4f {
  let ones = bitcast<vec4f>((bits & vec4u(0x00780000u)) | vec4u(0x3f800000u));
  return fma(ones, vec4f(16.0 * scale), vec4f(-24.0 * scale));
}

fn decode(bits: vec4u, scale: f32) -> array<vec4f, QUADS> {
  let w = bits.x;
  return array<vec4f, QUADS>(
    four(vec4u(w << 19u, w << 15u, w << 11u, w << 7u), scale),
    four(vec4u(w << 3u, w >> 1u, w >> 5u, w >> 9u), scale),
  );
}

/** Quad `quad` of the unit at a word. */
fn four_at(at: u32, quad: u32, scale: f32) -> vec4f {
  let w = words[at + quad / 2u] >> (16u * (quad & 1u));
  return four(vec4u(w << 19u, w << 15u, w << 11u, w << 7u), scale);
}
