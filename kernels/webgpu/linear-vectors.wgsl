// Operands in vectors of four: widths are whole units and multiples of four outputs.
#include KEPT
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;

fn x4(job: Job, first: u32, k: u32) -> vec4f { return arena[(first + k) >> 2u]; }

/** What outputs [first, first + 4) of a token are added to. */
struct Held {
  bias: vec4f,
  old: vec4f,
}

fn held4(job: Job, t: u32, first: u32) -> Held {
  var held = Held();
  if (first >= job.rows) { return held; }
  if (job.bias != NO_BIAS) { held.bias = arena[(job.bias + first) >> 2u]; }
  if (job.epilogue == 4u) { held.old = arena[(job.y + t * job.y_stride + first) >> 2u]; }
  return held;
}

fn store_held(job: Job, t: u32, first: u32, sum: vec4f, held: Held) {
  if (first >= job.rows) { return; }
  var value = sum;
  if (job.bias != NO_BIAS) { value += held.bias; }
  let out = activated(job.epilogue, value, held.old);
  if (is_whole(job.kept)) { arena[(job.y + t * job.y_stride + first) >> 2u] = out; }
  keep_four(t, job.kept, job.y_stride, t, first, out);
}

fn store4(job: Job, t: u32, first: u32, sum: vec4f) { store_held(job, t, first, sum, held4(job, t, first)); }
