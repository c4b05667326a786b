/** What is beyond the range of f16 is its largest number; NaN stays. */
fn halves_of(x: vec4f) -> vec4h {
  let is_number = (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) <= vec4u(0x7f800000u);
  return vec4h(select(x, clamp(x, vec4f(-65504.0), vec4f(65504.0)), is_number));
}
