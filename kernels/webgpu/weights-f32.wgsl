// f32 weights: four per unit.
const UNIT = 4u;
const STEPS = 1u;
const QUADS = 1u;

fn scale_of(job: Job, block: u32, row: u32, unit: u32) -> f32 { return 1.0; }
fn next_step(bits: vec4u) -> vec4u { return bits; }
fn decode(bits: vec4u, scale: f32) -> array<vec4f, QUADS> {
  return array<vec4f, QUADS>(bitcast<vec4f>(bits));
}
