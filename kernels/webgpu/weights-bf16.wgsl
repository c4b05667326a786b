// Weights of bf16: eight a chunk.
const CHUNK = 8u;
const CHUNK4 = 2u;
const IS_SCALED = false;

struct Chunk {
  bits: vec4u,
}

fn load_chunk(job: Job, row: u32, chunk: u32) -> Chunk {
  return Chunk(weights[job.weight + row * job.chunks + chunk]);
}

fn pair(word: u32) -> vec2f {
  return bitcast<vec2f>(vec2u(word << 16u, word & 0xffff0000u));
}

fn decode(c: Chunk) -> array<vec4f, CHUNK4> {
  return array<vec4f, CHUNK4>(
    vec4f(pair(c.bits.x), pair(c.bits.y)),
    vec4f(pair(c.bits.z), pair(c.bits.w)),
  );
}

fn scale_of(c: Chunk) -> f32 { return 1.0; }
