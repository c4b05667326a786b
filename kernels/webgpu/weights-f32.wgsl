// Weights of f32: eight a chunk.
const CHUNK = 8u;
const CHUNK4 = 2u;
const IS_SCALED = false;

struct Chunk {
  low: vec4u,
  high: vec4u,
}

fn load_chunk(job: Job, row: u32, chunk: u32) -> Chunk {
  let at = job.weight + 2u * (row * job.chunks + chunk);
  return Chunk(weights[at], weights[at + 1u]);
}

fn decode(c: Chunk) -> array<vec4f, CHUNK4> {
  return array<vec4f, CHUNK4>(bitcast<vec4f>(c.low), bitcast<vec4f>(c.high));
}

fn scale_of(c: Chunk) -> f32 { return 1.0; }
