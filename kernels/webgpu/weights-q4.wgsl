// 4-bit integer weights, stored + 8: 32 per unit, with one scale. Eight lie as those at even places, then the others
// (resources.ts).
const UNIT = 32u;
const STEPS = 4u;
const QUADS = 2u;
#include "scales.wgsl"

fn scale_of(job: Job, block: u32, row: u32, unit: u32) -> f32 { return scale_at(job, block, row, 1u, unit); }
fn next_step(bits: vec4u) -> vec4u { return bits.yzww; }

/** Four bits at place 8, 12 or 16 of a fraction: 2^15, 2^11 or 2^7 more than they are, of which the rest is exact. */
fn at8(w: u32, scale: f32) -> f32 { return fma(bitcast<f32>((w & 0xf00u) | 0x47000000u), scale, -32776.0 * scale); }
fn at12(w: u32, scale: f32) -> f32 { return fma(bitcast<f32>((w & 0xf000u) | 0x45000000u), scale, -2056.0 * scale); }
fn at16(w: u32, scale: f32) -> f32 { return fma(bitcast<f32>((w & 0xf0000u) | 0x43000000u), scale, -136.0 * scale); }

fn decode(bits: vec4u, scale: f32) -> array<vec4f, QUADS> {
  let w = bits.x;
  let low = w << 8u;
  let high = w >> 12u;
  return array<vec4f, QUADS>(
    vec4f(at8(low, scale), at16(w, scale), at12(low, scale), at8(high, scale)),
    vec4f(at8(w, scale), at12(high, scale), at12(w, scale), at16(high, scale)),
  );
}
