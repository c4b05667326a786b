// f16 weights: eight per unit.
const UNIT = 8u;
const STEPS = 1u;
const QUADS = 2u;

fn scale_of(job: Job, block: u32, row: u32, unit: u32) -> f32 { return 1.0; }
fn next_step(bits: vec4u) -> vec4u { return bits; }
fn decode(bits: vec4u, scale: f32) -> array<vec4f, QUADS> {
  return array<vec4f, QUADS>(
    vec4f(unpack2x16float(bits.x), unpack2x16float(bits.y)),
    vec4f(unpack2x16float(bits.z), unpack2x16float(bits.w)),
  );
}
