// Two f16 weights of a word.
fn pair(word: u32) -> vec2f { return unpack2x16float(word); }
