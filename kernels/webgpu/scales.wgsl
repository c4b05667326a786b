// Scales of rounded weights: bf16 behind the values of their matrix. In blocks of 8 outputs, too: of every two scales of a
// row, which share a word, first those of the first output. A weight is its integer times its scale, without rounding.
fn scale_at(job: Job, block: u32, row: u32, units_each: u32, unit: u32) -> f32 {
  let each = (job.units + 2u * units_each - 1u) / (2u * units_each);
  let index = unit / units_each;
  let word = words[job.scales + (block * each + (index >> 1u)) * BLOCK + row];
  return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (index & 1u) == 1u));
}
