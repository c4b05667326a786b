// 8-bit integer weights: 16 per unit; two units share a scale. Four lie as the first, third, second, fourth (resources.ts).
const UNIT = 16u;
const STEPS = 2u;
const QUADS = 2u;
#include "scales.wgsl"

fn scale_of(job: Job, block: u32, row: u32, unit: u32) -> f32 { return scale_at(job, block, row, 2u, unit); }
fn next_step(bits: vec4u) -> vec4u { return bits.zwww; }

/** A byte + 128 becomes the eight highest bits of a fraction: 1 + (i + 128) / 256, of which the rest is exact. */
fn four(bits: u32, scale: f32) -> vec4f {
  let word = bits ^ 0x80808080u;
  let bytes = vec4u(word << 15u, word >> 1u, word << 7u, word >> 9u) & vec4u(0x007f8000u);
  return fma(bitcast<vec4f>(bytes | vec4u(0x3f800000u)), vec4f(256.0 * scale), vec4f(-384.0 * scale));
}

fn decode(bits: vec4u, scale: f32) -> array<vec4f, QUADS> {
  return array<vec4f, QUADS>(four(bits.x, scale), four(bits.y, scale));
}
