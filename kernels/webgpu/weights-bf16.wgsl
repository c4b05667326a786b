// bf16 weights: eight per unit.
const UNIT = 8u;
const STEPS = 1u;
const QUADS = 2u;

fn scale_of(job: Job, block: u32, row: u32, unit: u32) -> f32 { return 1.0; }
fn next_step(bits: vec4u) -> vec4u { return bits; }

fn pair(word: u32) -> vec2f {
  return bitcast<vec2f>(vec2u(word << 16u, word & 0xffff0000u));
}

fn decode(bits: vec4u, scale: f32) -> array<vec4f, QUADS> {
  return array<vec4f, QUADS>(
    vec4f(pair(bits.x), pair(bits.y)),
    vec4f(pair(bits.z), pair(bits.w)),
  );
}
