// Eight 4-bit weights as f16. Four bits, stored + 8, become bits of 1024 + 8 + weight, or sixteen times as high of 1024 + 16 (8 +
// weight); times the scale it is rounded once, as the product of f32 would be.
enable f16;

fn eight_halves(bits: vec4u, scale: f32) -> vec4u {
  let by = vec2h(f16(scale));
  let words = vec2u(bits.x, bits.x >> 8u);
  let low = (words & vec2u(0x000f000fu)) | vec2u(0x64006400u);
  let high = (words & vec2u(0x00f000f0u)) | vec2u(0x64006400u);
  return vec4u(
    bitcast<u32>((bitcast<vec2h>(low.x) - 1032.0h) * by),
    bitcast<u32>(fma(bitcast<vec2h>(high.x), vec2h(0.0625h), vec2h(-72.0h)) * by),
    bitcast<u32>((bitcast<vec2h>(low.y) - 1032.0h) * by),
    bitcast<u32>(fma(bitcast<vec2h>(high.y), vec2h(0.0625h), vec2h(-72.0h)) * by),
  );
}
