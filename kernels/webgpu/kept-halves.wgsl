// Outputs that a product by matrices reads are written as f16, too, where it finds them: [tokens / SIDE, columns / SIDE, SIDE,
// SIDE]. Columns behind a row's last are never written, and so zero.
enable f16;
@group(2) @binding(0) var<storage, read_write> as_halves: array<vec4h>;
const IS_KEPT = true;
const NOT_KEPT = 0xffffffffu;
/** Of a place: nobody reads that output as f32. */
const ALONE = 0x80000000u;

#include "halves.wgsl"

fn is_whole(to: u32) -> bool { return to == NOT_KEPT || (to & ALONE) == 0u; }

/** Four outputs from c on of a token whose tensor is kept from vector of eight `to` on. */
fn keep_four(i: u32, to: u32, columns: u32, t: u32, c: u32, four: vec4f) {
  if (to == NOT_KEPT) { return; }
  let matrices = (columns + PADDED - 1u) / PADDED * (PADDED / SIDE);
  let at = ((t / SIDE * matrices + c / SIDE) * SIDE + t % SIDE) * SIDE + c % SIDE;
  as_halves[2u * (to & ~ALONE) + at / 4u] = halves_of(four);
}

/** Each four is kept at once. */
fn keep_all(columns: u32, t: u32, each: u32, first: u32, after: u32, thread: u32) {}
