fn keep_half(to: u32, columns: u32, t: u32, c: u32, value: f32) {}
fn keep_four(to: u32, columns: u32, t: u32, c: u32, four: vec4f) {}
