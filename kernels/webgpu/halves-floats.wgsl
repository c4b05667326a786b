// Eight weights as f16, by way of f32. What is beyond the range of f16 is infinite there, and NaN stays.
enable f16;

fn eight_halves(bits: vec4u, scale: f32) -> vec4u {
  let w = decode(bits, scale);
  return vec4u(bitcast<vec2u>(vec4h(w[0])), bitcast<vec2u>(vec4h(w[1])));
}
