// In which order inputs are multiplied.
const SCALE_OF_INPUTS = 0.0625;

/** The inputs that are multiplied by either word. */
fn halves_of_eight(a: vec4f, b: vec4f) -> array<vec4f, 2> {
  return array<vec4f, 2>(vec4f(a.x, b.x, a.y, b.y), vec4f(a.z, b.z, a.w, b.w));
}
