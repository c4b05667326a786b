// In which order inputs are multiplied.
const SCALE_OF_INPUTS = 1.0;

/** The inputs that are multiplied by either word. */
fn halves_of_eight(a: vec4f, b: vec4f) -> array<vec4f, 2> { return array<vec4f, 2>(a.xzyw, b.xzyw); }
