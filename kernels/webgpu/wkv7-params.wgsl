// Shared by the kernels of RWKV-7's time mixing: operands [T, C], and the arithmetic of a token, with every
// multiply-add fused by hand, so that all kernels have the same bits.
#include "step.wgsl"
struct Params {
  out: u32,
  r: u32,
  k: u32,
  v: u32,
  w: u32,
  a: u32,
  g: u32,
  v_gate: u32,
  v_first: u32,
  k_k: u32,
  k_a: u32,
  r_k: u32,
  gain: u32,
  bias: u32,
  eps: f32,
  channels: u32,
  wkv: u32, // within a slot
  slot_size: u32,
  slots: u32,
  has_gate: u32,
  kk: u32, // scratch, [T, C]
  kept: u32, // kept-halves.wgsl, kept-bytes.wgsl
  pad0: u32,
  pad1: u32,
}
@group(1) @binding(0) var<uniform> p: Params;
#include "math.wgsl"

const MAX_DECAY = 0.6065306597126334; // e^(−½)
