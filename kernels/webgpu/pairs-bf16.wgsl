// Two bf16 weights of a word.
fn pair(word: u32) -> vec2f { return bitcast<vec2f>(vec2u(word << 16u, word & 0xffff0000u)); }
