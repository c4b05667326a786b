// Operands as single numbers, for any width.
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;

fn x1(job: Job, first: u32, k: u32) -> f32 {
  if (k >= job.columns) { return 0.0; }
  return arena[first + k];
}

fn x4(job: Job, first: u32, k: u32) -> vec4f {
  return vec4f(x1(job, first, k), x1(job, first, k + 1u), x1(job, first, k + 2u), x1(job, first, k + 3u));
}

fn store1(job: Job, t: u32, row: u32, sum: f32) {
  var value = sum;
  if (job.bias != NO_BIAS) { value += arena[job.bias + row]; }
  let at = job.y + t * job.y_stride + row;
  arena[at] = activated(job.epilogue, vec4f(value), vec4f(arena[at])).x;
}

/** Outputs [first, first + 4) of a token. */
fn store4(job: Job, t: u32, first: u32, sum: vec4f) {
  for (var i = 0u; i < min(4u, job.rows - min(first, job.rows)); i++) { store1(job, t, first + i, sum[i]); }
}

/** Nothing is read ahead here. */
struct Held {
  none: u32,
}
fn held4(job: Job, t: u32, first: u32) -> Held { return Held(); }
fn store_held(job: Job, t: u32, first: u32, sum: vec4f, held: Held) { store4(job, t, first, sum); }
