const IS_KEPT = false;
/** Whether an output is written as f32. */
fn is_whole(to: u32) -> bool { return true; }
fn keep_four(i: u32, to: u32, columns: u32, t: u32, c: u32, four: vec4f) {}
fn keep_all(columns: u32, t: u32, each: u32, first: u32, after: u32, thread: u32) {}
