// Inputs of dot products: whole numbers of 16 bits in units of a group's largest magnitude / MOST, as two signed bytes.
/** 127 · 256 + 127: its higher byte is no more than 127. */
const MOST = 32639.0;
/** Groups that are smaller count as zero: the inverse of their unit might be infinite. */
const LEAST = 7.888609e-31;
/** A number below 2^22 plus this has the nearest whole number in its lowest bits. */
const WHOLE = 12582912.0;

/** As bits, so that NaN is the largest of all. */
fn largest_of(a: vec4f, b: vec4f) -> u32 {
  let all = max(bitcast<vec4u>(a) & vec4u(0x7fffffffu), bitcast<vec4u>(b) & vec4u(0x7fffffffu));
  return max(max(all.x, all.y), max(all.z, all.w));
}

/** Higher bytes, lower bytes. */
fn bytes_of(x: vec4f, inverse: f32) -> vec2u {
  let low = bitcast<vec4u>(fma(x, vec4f(inverse), vec4f(WHOLE)));
  let high = low + vec4u(128u);
  return vec2u(
    ((high.x >> 8u) & 0xffu) | (high.y & 0xff00u) | ((high.z << 8u) & 0xff0000u) | ((high.w << 16u) & 0xff000000u),
    (low.x & 0xffu) | ((low.y << 8u) & 0xff00u) | ((low.z << 16u) & 0xff0000u) | (low.w << 24u),
  );
}

/** Eight inputs of a group: higher bytes of either half, then lower bytes. */
fn rounded_eight(a: vec4f, b: vec4f, largest: u32) -> vec4u {
  let most = bitcast<f32>(largest);
  let inverse = select(0.0, MOST / most, most >= LEAST);
  let halves = halves_of_eight(a, b);
  let first = bytes_of(halves[0], inverse);
  let second = bytes_of(halves[1], inverse);
  return vec4u(first.x, second.x, first.y, second.y);
}

/** What a whole number of a group stands for, times a weight's share. */
fn scale_of_inputs(largest: u32) -> f32 {
  let most = bitcast<f32>(largest);
  return select(most * (SCALE_OF_INPUTS / MOST), 0.0, most < LEAST);
}
