// Philox4x32-10, as reference/sample.ts.
fn high_product(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let mid1 = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let mid2 = (a & 0xffffu) * (b >> 16u) + (mid1 & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (mid1 >> 16u) + (mid2 >> 16u);
}

/** Four uniforms in [0, 1) with 24 bits. */
fn philox(key_in: vec2u, position: u32, stream: u32, block: u32) -> vec4f {
  var c = vec4u(position, stream, block, 0u);
  var key = key_in;
  for (var round = 0u; round < 10u; round++) {
    let high0 = high_product(0xd2511f53u, c.x);
    let high1 = high_product(0xcd9e8d57u, c.z);
    c = vec4u(high1 ^ c.y ^ key.x, 0xcd9e8d57u * c.z, high0 ^ c.w ^ key.y, 0xd2511f53u * c.x);
    key += vec2u(0x9e3779b9u, 0xbb67ae85u);
  }
  return vec4f(c >> vec4u(8u)) * (1.0 / 16777216.0);
}
