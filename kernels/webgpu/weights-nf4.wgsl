// 4-bit indices of the levels of a normal distribution: 32 per unit; two units share a scale.
const UNIT = 32u;
const STEPS = 4u;
const QUADS = 2u;
#include "scales.wgsl"

/** The levels (quantised.ts) + 128, four a word. */
const LEVELS = vec4u(0x4e3d2801u, 0x8074695cu, 0xab9f948au, 0xffdcc7b8u);

fn scale_of(job: Job, block: u32, row: u32, unit: u32) -> f32 { return scale_at(job, block, row, 2u, unit); }
fn next_step(bits: vec4u) -> vec4u { return bits.yzww; }

fn level(code: u32) -> f32 {
  let low = select(LEVELS.x, LEVELS.y, (code & 4u) != 0u);
  let high = select(LEVELS.z, LEVELS.w, (code & 4u) != 0u);
  let word = select(low, high, (code & 8u) != 0u);
  return f32((word >> ((code & 3u) * 8u)) & 255u) - 128.0;
}

fn four(word: u32) -> vec4f {
  return vec4f(level(word & 15u), level((word >> 4u) & 15u), level((word >> 8u) & 15u), level((word >> 12u) & 15u));
}

fn decode(bits: vec4u, scale: f32) -> array<vec4f, QUADS> {
  return array<vec4f, QUADS>(four(bits.x) * scale, four(bits.x >> 16u) * scale);
}
