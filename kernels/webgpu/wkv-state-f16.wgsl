// wkv-state.wgsl with f16 in memory. What is kept of a state is rounded after every token, so that it does not matter where
// steps begin and end. It is rounded up or down with the odds of the remainder: to the nearest, slow decays would stall.
// Integer arithmetic only: devices may round and flush f16 as they like.
@group(1) @binding(1) var<storage, read_write> states: array<vec4u>;

/** Of the least normal f16, and of 65536, the first number beyond its range, as f32. */
const LEAST_NORMAL = 0x38800000u;
const BEYOND = 0x47800000u;
/** Between the exponents of f16 and f32, at the place of the latter. */
const EXPONENTS = 0x38000000u;
/** Least f16 above zero, and how many are in one. */
const LEAST_HALF = 5.9604644775390625e-8;
const LEASTS = 16777216.0;

fn state_at(slot: u32, row: u32) -> u32 { return (slot * p.slot_size + p.wkv) / 4u + row * N8; }

fn widened(h: vec4u) -> vec4f {
  let size = h & vec4u(0x7fffu);
  var bits = (size << vec4u(13u)) + EXPONENTS;
  bits = select(bits, bitcast<vec4u>(vec4f(size) * LEAST_HALF), size < vec4u(0x400u));
  bits = select(bits, (size << vec4u(13u)) | vec4u(0x7f800000u), size >= vec4u(0x7c00u));
  return bitcast<vec4f>(bits | ((h & vec4u(0x8000u)) << vec4u(16u)));
}

/** Of numbers that kept() has rounded. */
fn narrowed(s: vec4f) -> vec4u {
  let size = bitcast<vec4u>(s) & vec4u(0x7fffffffu);
  var h = (size - EXPONENTS) >> vec4u(13u);
  h = select(h, vec4u(abs(s) * LEASTS), size < vec4u(LEAST_NORMAL));
  h = select(h, vec4u(0x7c00u), size >= vec4u(BEYOND));
  h = select(h, vec4u(0x7e00u), size > vec4u(0x7f800000u));
  return h | ((bitcast<vec4u>(s) >> vec4u(16u)) & vec4u(0x8000u));
}

/** Two of a thread's vectors lie side by side. */
fn vector_of(j: u32, part: u32) -> u32 { return 2u * (j / 2u * PARTS + part) + j % 2u; }

fn load_state(at: u32, part: u32) -> array<vec4f, EACH> {
  var s: array<vec4f, EACH>;
#repeat j PAIRS
  let two$j = states[at + $ju * PARTS + part];
  s[2u * $ju] = widened(vec4u(two$j.x & 0xffffu, two$j.x >> 16u, two$j.y & 0xffffu, two$j.y >> 16u));
  s[2u * $ju + 1u] = widened(vec4u(two$j.z & 0xffffu, two$j.z >> 16u, two$j.w & 0xffffu, two$j.w >> 16u));
#end j
  return s;
}

fn store_state(at: u32, part: u32, s: array<vec4f, EACH>) {
#repeat j PAIRS
  let low$j = narrowed(s[2u * $ju]);
  let high$j = narrowed(s[2u * $ju + 1u]);
  states[at + $ju * PARTS + part] = vec4u(low$j.xz | (low$j.yw << vec2u(16u)), high$j.xz | (high$j.yw << vec2u(16u)));
#end j
}

/** Of a row, from what the token brings to it, so that it depends on nothing outside the sequence. */
fn noise_of(v: f32, k: f32, row: u32) -> u32 {
  var h = (bitcast<u32>(v) * 0x85ebca6bu) ^ (bitcast<u32>(k) * 0xc2b2ae35u) ^ (row * 0x27d4eb2fu);
  h ^= h >> 15u;
  h *= 0x2c1b3c6du;
  return h ^ (h >> 12u);
}

/** The nearest f16 above or below, of vector j. */
fn kept(s: vec4f, noise: u32, j: u32) -> vec4f {
  let odds = (vec4u(noise ^ (j * 0x9e3779b9u)) * vec4u(0x85ebca6bu, 0xc2b2ae35u, 0x27d4eb2fu, 0x9e3779b1u)) >> vec4u(19u);
  let bits = bitcast<vec4u>(s);
  let size = bits & vec4u(0x7fffffffu);
  let small = bitcast<vec4u>(floor(fma(abs(s), vec4f(LEASTS), vec4f(odds) / 8192.0)) * LEAST_HALF);
  var rounded = select((size + odds) & vec4u(0xffffe000u), small, size < vec4u(LEAST_NORMAL));
  // Infinity follows the largest f16.
  rounded = select(rounded, vec4u(BEYOND - 0x2000u), size >= vec4u(BEYOND - 0x2000u));
  rounded = select(rounded, vec4u(0x7f800000u), size >= vec4u(BEYOND));
  rounded = select(rounded, vec4u(0x7fc00000u), size > vec4u(0x7f800000u));
  return bitcast<vec4f>(rounded | (bits & vec4u(0x80000000u)));
}
