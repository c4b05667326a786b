// Eight 8-bit weights as f16. A byte + 128 becomes the lowest bits of 1024 + 128 + weight; times the scale it is rounded once, as
// the product of f32 would be.
enable f16;

fn eight_halves(bits: vec4u, scale: f32) -> vec4u {
  let by = vec2h(f16(scale));
  let pairs = (vec4u(bits.x, bits.x >> 8u, bits.y, bits.y >> 8u) & vec4u(0x00ff00ffu)) ^ vec4u(0x64806480u);
  return vec4u(
    bitcast<u32>((bitcast<vec2h>(pairs.x) - 1152.0h) * by),
    bitcast<u32>((bitcast<vec2h>(pairs.y) - 1152.0h) * by),
    bitcast<u32>((bitcast<vec2h>(pairs.z) - 1152.0h) * by),
    bitcast<u32>((bitcast<vec2h>(pairs.w) - 1152.0h) * by),
  );
}
