// Several products y = epilogue(x·Wᵀ + bias) with one weight type in one launch. The inputs of an output are cut into
// SEGMENTS runs of whole units; each run is summed from its first input to its last, then the runs in their order. So an
// output has the same bits for any number of tokens and any division of the work.
//
// Weights are in blocks of 8 outputs: of each unit of inputs, which has 16 bytes, first that of the first output, then that of
// the second, …
#include "step.wgsl"
#include "math.wgsl"
const SEGMENTS = 32u;
const BLOCK = 8u;
const NO_BIAS = 0xffffffffu;

struct Job {
  x: u32,
  y: u32,
  bias: u32,
  weight: u32, // in units
  scales: u32, // in words
  rows: u32,
  columns: u32,
  units: u32, // of a row
  first: u32, // block of the launch
  epilogue: u32,
  y_stride: u32,
  halves: u32, // of inputs, in vectors of eight
  kept: u32, // of outputs, likewise; kept-halves.wgsl
  is_beside: u32, // beside-one.wgsl
  factor: f32, // of scales, where weights become f16: a power of two that brings them into its range
  inverse: f32,
}
struct Params {
  of_logits: u32,
  pad0: u32,
  pad1: u32,
  pad2: u32,
  firsts: array<vec4u, 2>, // of the jobs; beyond the last the largest number
  jobs: array<Job, 8>,
}
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read> weights: array<vec4u>;
/** The same buffer. */
@group(1) @binding(2) var<storage, read> words: array<u32>;

/** Without a loop: each turn would wait for the one before. */
fn job_of(block: u32) -> Job {
  let begun = vec4u(vec4u(block) >= p.firsts[0]) + vec4u(vec4u(block) >= p.firsts[1]);
  return p.jobs[begun.x + begun.y + begun.z + begun.w - 1u];
}

fn num_inputs() -> u32 { return select(num_tokens(), num_logits(), p.of_logits == 1u); }

fn activated(epilogue: u32, x: vec4f, old: vec4f) -> vec4f {
  switch (epilogue) {
    case 1u: { return vec4f(tanh_of(x.x), tanh_of(x.y), tanh_of(x.z), tanh_of(x.w)); }
    case 2u: { return vec4f(sigmoid(x.x), sigmoid(x.y), sigmoid(x.z), sigmoid(x.w)); }
    case 3u: { return x * max(x, vec4f()); }
    case 4u: { return old + x; }
    default: { return x; }
  }
}
