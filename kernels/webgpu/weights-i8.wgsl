// Weights of 8-bit integers: 32 a chunk, which share a scale.
const CHUNK = 32u;
const CHUNK4 = 8u;
const IS_SCALED = true;
#include "scales.wgsl"

struct Chunk {
  low: vec4u,
  high: vec4u,
  scale: f32,
}

fn load_chunk(job: Job, row: u32, chunk: u32) -> Chunk {
  let index = row * job.chunks + chunk;
  let at = job.weight + 2u * index;
  return Chunk(weights[at], weights[at + 1u], scale_at(job.scales, index));
}

/** Four signed bytes. */
fn four(word: u32) -> vec4f {
  let w = vec4i(vec4u(word << 24u, word << 16u, word << 8u, word));
  return vec4f(w >> vec4u(24u));
}

fn decode(c: Chunk) -> array<vec4f, CHUNK4> {
  return array<vec4f, CHUNK4>(
    four(c.low.x), four(c.low.y), four(c.low.z), four(c.low.w),
    four(c.high.x), four(c.high.y), four(c.high.z), four(c.high.w),
  );
}

fn scale_of(c: Chunk) -> f32 { return c.scale; }
