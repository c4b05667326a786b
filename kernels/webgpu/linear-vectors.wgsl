// Operands in vectors of four: widths are whole units and multiples of four outputs.
#include HALVES
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;

fn x4(job: Job, first: u32, k: u32) -> vec4f { return arena[(first + k) >> 2u]; }

/** Outputs [first, first + 4) of a token. */
fn store4(job: Job, t: u32, first: u32, sum: vec4f) {
  if (first >= job.rows) { return; }
  var value = sum;
  if (job.bias != NO_BIAS) { value += arena[(job.bias + first) >> 2u]; }
  let at = (job.y + t * job.y_stride + first) >> 2u;
  var old = vec4f();
  if (job.epilogue == 4u) { old = arena[at]; }
  let out = vec4f(
    activate(job.epilogue, value.x, old.x),
    activate(job.epilogue, value.y, old.y),
    activate(job.epilogue, value.z, old.z),
    activate(job.epilogue, value.w, old.w),
  );
  arena[at] = out;
  keep_four(job.kept, job.y_stride, t, first, out);
}
