// Outputs that a product by matrices reads are written as f16, too, where it finds them: [tokens / SIDE, columns / SIDE, SIDE,
// SIDE]. Columns behind a row's last are never written, and so zero.
enable f16;
/** A kernel uses one of these. */
@group(2) @binding(0) var<storage, read_write> as_halves: array<f16>;
@group(2) @binding(0) var<storage, read_write> as_fours: array<vec4h>;
const NO_HALVES = 0xffffffffu;

/** Of output c of a token whose tensor is kept from vector of eight `to` on. */
fn place_of_half(to: u32, columns: u32, t: u32, c: u32) -> u32 {
  let matrices = (columns + PADDED - 1u) / PADDED * (PADDED / SIDE);
  return 8u * to + ((t / SIDE * matrices + c / SIDE) * SIDE + t % SIDE) * SIDE + c % SIDE;
}

/** What is beyond the range of f16 is its largest number; NaN stays. */
fn halves_of(x: vec4f) -> vec4h {
  let is_number = (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) <= vec4u(0x7f800000u);
  return vec4h(select(x, clamp(x, vec4f(-65504.0), vec4f(65504.0)), is_number));
}

fn keep_half(to: u32, columns: u32, t: u32, c: u32, value: f32) {
  if (to != NO_HALVES) { as_halves[place_of_half(to, columns, t, c)] = halves_of(vec4f(value)).x; }
}

fn keep_four(to: u32, columns: u32, t: u32, c: u32, four: vec4f) {
  if (to != NO_HALVES) { as_fours[place_of_half(to, columns, t, c) / 4u] = halves_of(four); }
}
