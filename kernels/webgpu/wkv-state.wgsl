// A value row of a head's state: N numbers in N/4 vectors, held in f32 while a row of the step runs, and so in memory.
@group(1) @binding(1) var<storage, read_write> states: array<vec4f>;

/** Place of a value row, counted over all heads. */
fn state_at(slot: u32, row: u32) -> u32 { return (slot * p.slot_size + p.wkv) / 4u + row * N4; }

fn load_state(at: u32) -> array<vec4f, N4> {
  var s: array<vec4f, N4>;
#repeat j N4
  s[$j] = states[at + $ju];
#end j
  return s;
}

fn store_state(at: u32, s: array<vec4f, N4>) {
#repeat j N4
  states[at + $ju] = s[$j];
#end j
}

/** What is kept of a vector from one token to the next: here all of it. */
fn kept(s: vec4f, noise: u32, j: u32) -> vec4f { return s; }
fn noise_of(v: f32, k: f32, row: u32) -> u32 { return 0u; }
