// Weights of 4-bit indices of the levels of a normal distribution: 32 a chunk, two chunks share a scale.
const CHUNK = 32u;
const CHUNK4 = 8u;
const IS_SCALED = true;
#include "scales.wgsl"

/** The levels (quantised.ts) + 128, four a word. */
const LEVELS = vec4u(0x4e3d2801u, 0x8074695cu, 0xab9f948au, 0xffdcc7b8u);

struct Chunk {
  bits: vec4u,
  scale: f32,
}

fn load_chunk(job: Job, row: u32, chunk: u32) -> Chunk {
  let index = row * job.chunks + chunk;
  let pairs = (job.chunks + 1u) >> 1u;
  let scale = scale_at(job.scales, row * pairs + (chunk >> 1u));
  return Chunk(weights[job.weight + index], scale);
}

fn level(code: u32) -> f32 {
  let low = select(LEVELS.x, LEVELS.y, (code & 4u) != 0u);
  let high = select(LEVELS.z, LEVELS.w, (code & 4u) != 0u);
  let word = select(low, high, (code & 8u) != 0u);
  return f32((word >> ((code & 3u) * 8u)) & 255u) - 128.0;
}

fn four(word: u32) -> vec4f {
  return vec4f(level(word & 15u), level((word >> 4u) & 15u), level((word >> 8u) & 15u), level((word >> 12u) & 15u));
}

fn decode(c: Chunk) -> array<vec4f, CHUNK4> {
  return array<vec4f, CHUNK4>(
    four(c.bits.x), four(c.bits.x >> 16u), four(c.bits.y), four(c.bits.y >> 16u),
    four(c.bits.z), four(c.bits.z >> 16u), four(c.bits.w), four(c.bits.w >> 16u),
  );
}

fn scale_of(c: Chunk) -> f32 { return c.scale; }
