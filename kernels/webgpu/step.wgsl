// The step as the host packs it (step-buffer.ts): sizes, the offset of each array, then a record for each token and row, then the
// arrays of the batch. Records have fixed places: each number that is looked up to find another costs a launch half a microsecond.
@group(0) @binding(1) var<storage, read> step: array<u32>;

/** The slot of a row that does not run; every pool has a scratch slot behind its last. */
const IDLE = 0xffffffffu;
const RECORDS = 24u;

fn num_tokens() -> u32 { return step[0]; }
fn num_rows() -> u32 { return step[1]; }
fn num_logits() -> u32 { return step[2]; }
fn num_samples() -> u32 { return step[3]; }
fn token_id(t: u32) -> u32 { return step[RECORDS + 8u * t]; }
/** Of a token's row: its first token, the one behind its last, its slot. */
fn token_start(t: u32) -> u32 { return step[RECORDS + 8u * t + 1u]; }
fn token_end(t: u32) -> u32 { return step[RECORDS + 8u * t + 2u]; }
fn token_slot(t: u32) -> u32 { return step[RECORDS + 8u * t + 3u]; }
fn row_start(b: u32) -> u32 { return step[RECORDS + 8u * b + 4u]; }
fn row_end(b: u32) -> u32 { return step[RECORDS + 8u * b + 5u]; }
fn row_slot(b: u32) -> u32 { return step[RECORDS + 8u * b + 6u]; }
fn logit_token(r: u32) -> u32 { return step[step[4] + r]; }
fn blend_count(r: u32) -> u32 { return step[step[5] + r]; }
fn blend_weight(r: u32) -> f32 { return bitcast<f32>(step[step[6] + r]); }
fn sample_row(s: u32) -> u32 { return step[step[7] + s]; }
fn sample_slot(s: u32) -> u32 { return step[step[8] + s]; }
fn sample_float(s: u32, i: u32) -> f32 { return bitcast<f32>(step[step[9] + 8u * s + i]); }
fn sample_int(s: u32, i: u32) -> u32 { return step[step[10] + 8u * s + i]; }
fn bias_start(s: u32) -> u32 { return step[step[11] + s]; }
fn bias_id(i: u32) -> u32 { return step[step[12] + i]; }
fn bias_value(i: u32) -> f32 { return bitcast<f32>(step[step[13] + i]); }
fn mask_word(i: u32) -> u32 { return step[step[16] + i]; }
