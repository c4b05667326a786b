// Loads of linear-wide into shared memory: four inputs or weights at a time, zeros after the end of a row.
fn input_at(job: Job, token: u32, quad: u32, count: u32) -> vec4f {
  let t = min(token, count - 1u);
  let x = x4(job, job.x + t * job.columns, min(4u * quad, job.units * UNIT - 4u));
  return select(vec4f(), x, vec4<bool>(4u * quad < job.units * UNIT));
}

/** Of row `row` behind block `block`. */
fn weight_at(job: Job, block: u32, blocks: u32, row: u32, quad: u32) -> vec4f {
  let own = min(block + row / BLOCK, blocks - 1u);
  let unit = min(4u * quad / UNIT, job.units - 1u);
  let at = 4u * (job.weight + (own * job.units + unit) * BLOCK + row % BLOCK);
  let w = four_at(at, quad % (UNIT / 4u), scale_of(job, own, row % BLOCK, unit));
  return select(vec4f(), w, vec4<bool>(4u * quad < job.units * UNIT));
}
