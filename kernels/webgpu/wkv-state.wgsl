// A value row of a head's state: N numbers in N/4 vectors, which PARTS threads hold in f32 while a row of the step runs, EACH its
// own. In memory they are f32, too.
@group(1) @binding(1) var<storage, read_write> states: array<vec4f>;

/** Place of a value row, counted over all heads. */
fn state_at(slot: u32, row: u32) -> u32 { return (slot * p.slot_size + p.wkv) / 4u + row * N4; }
/** Vector j of those that thread `part` of the PARTS of a row has, counted over the row. */
fn vector_of(j: u32, part: u32) -> u32 { return j * PARTS + part; }

fn load_state(at: u32, part: u32) -> array<vec4f, EACH> {
  var s: array<vec4f, EACH>;
#repeat j EACH
  s[$j] = states[at + vector_of($ju, part)];
#end j
  return s;
}

fn store_state(at: u32, part: u32, s: array<vec4f, EACH>) {
#repeat j EACH
  states[at + vector_of($ju, part)] = s[$j];
#end j
}

/** What is kept of a vector from one token to the next: here all of it. */
fn kept(s: vec4f, noise: u32, j: u32) -> vec4f { return s; }
fn noise_of(v: f32, k: f32, row: u32) -> u32 { return 0u; }
