// Weights of 4-bit integers, stored + 8: 32 a chunk, which share a scale.
const CHUNK = 32u;
const CHUNK4 = 8u;
const IS_SCALED = true;
#include "scales.wgsl"

struct Chunk {
  bits: vec4u,
  scale: f32,
}

fn load_chunk(job: Job, row: u32, chunk: u32) -> Chunk {
  let index = row * job.chunks + chunk;
  return Chunk(weights[job.weight + index], scale_at(job.scales, index));
}

fn four(word: u32) -> vec4f {
  return vec4f((vec4u(word) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u)) - vec4f(8.0);
}

fn decode(c: Chunk) -> array<vec4f, CHUNK4> {
  return array<vec4f, CHUNK4>(
    four(c.bits.x), four(c.bits.x >> 16u), four(c.bits.y), four(c.bits.y >> 16u),
    four(c.bits.z), four(c.bits.z >> 16u), four(c.bits.w), four(c.bits.w >> 16u),
  );
}

fn scale_of(c: Chunk) -> f32 { return c.scale; }
