// A value row of a head's state: N numbers in N/4 vectors, held in f32 while a row of the step runs.
@group(1) @binding(1) var<storage, read_write> states: array<vec4f>;

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
