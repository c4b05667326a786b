// Weights of f16: eight a chunk.
const CHUNK = 8u;
const CHUNK4 = 2u;
const IS_SCALED = false;

struct Chunk {
  bits: vec4u,
}

fn load_chunk(job: Job, row: u32, chunk: u32) -> Chunk {
  return Chunk(weights[job.weight + row * job.chunks + chunk]);
}

fn decode(c: Chunk) -> array<vec4f, CHUNK4> {
  return array<vec4f, CHUNK4>(
    vec4f(unpack2x16float(c.bits.x), unpack2x16float(c.bits.y)),
    vec4f(unpack2x16float(c.bits.z), unpack2x16float(c.bits.w)),
  );
}

fn scale_of(c: Chunk) -> f32 { return 1.0; }
