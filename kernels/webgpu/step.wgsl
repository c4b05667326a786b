// The step as the host packs it (step-buffer.ts): sizes, the offset of each array, then the arrays of the batch.
@group(0) @binding(1) var<storage, read> step: array<u32>;

/** The slot of a row that does not run; every pool has a scratch slot behind its last. */
const IDLE = 0xffffffffu;

fn num_tokens() -> u32 { return step[0]; }
fn num_rows() -> u32 { return step[1]; }
fn num_logits() -> u32 { return step[2]; }
fn num_samples() -> u32 { return step[3]; }
fn token_id(t: u32) -> u32 { return step[step[4] + t]; }
fn token_row(t: u32) -> u32 { return step[step[5] + t]; }
fn row_start(b: u32) -> u32 { return step[step[6] + b]; }
fn row_slot(b: u32) -> u32 { return step[step[7] + b]; }
fn logit_token(r: u32) -> u32 { return step[step[8] + r]; }
fn blend_count(r: u32) -> u32 { return step[step[9] + r]; }
fn blend_weight(r: u32) -> f32 { return bitcast<f32>(step[step[10] + r]); }
fn sample_row(s: u32) -> u32 { return step[step[11] + s]; }
fn sample_slot(s: u32) -> u32 { return step[step[12] + s]; }
fn sample_float(s: u32, i: u32) -> f32 { return bitcast<f32>(step[step[13] + 8u * s + i]); }
fn sample_int(s: u32, i: u32) -> u32 { return step[step[14] + 8u * s + i]; }
fn bias_start(s: u32) -> u32 { return step[step[15] + s]; }
fn bias_id(i: u32) -> u32 { return step[step[16] + i]; }
fn bias_value(i: u32) -> f32 { return bitcast<f32>(step[step[17] + i]); }
fn mask_word(i: u32) -> u32 { return step[step[20] + i]; }
