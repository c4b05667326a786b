// Scales of rounded weights: bf16, two a word, behind the values of their matrix.
fn scale_at(first: u32, index: u32) -> f32 {
  let word = scales[first + (index >> 1u)];
  return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (index & 1u) == 1u));
}
