// Several products y = epilogue(x·Wᵀ + bias) of one type of weights in one launch. Every output is summed in one order,
// whatever the number of tokens: LANES lanes take every LANESth chunk of the inputs each, and their sums are added as a tree.
#include "step.wgsl"
#include "math.wgsl"
const LANES = 8u;
const NO_BIAS = 0xffffffffu;

struct Job {
  x: u32,
  y: u32,
  bias: u32,
  weight: u32, // in vectors of 16 bytes
  scales: u32, // in words
  rows: u32,
  columns: u32,
  chunks: u32, // of a row
  first: u32, // workgroup
  epilogue: u32,
  y_stride: u32,
  pad: u32,
}
struct Params {
  num_jobs: u32,
  of_logits: u32,
  pad0: u32,
  pad1: u32,
  jobs: array<Job, 8>,
}
@group(1) @binding(0) var<uniform> p: Params;
@group(1) @binding(1) var<storage, read> weights: array<vec4u>;
@group(1) @binding(2) var<storage, read> scales: array<u32>;

fn job_of(group: u32) -> Job {
  var j = 0u;
  while (j + 1u < p.num_jobs && group >= p.jobs[j + 1u].first) { j++; }
  return p.jobs[j];
}

fn num_inputs() -> u32 { return select(num_tokens(), num_logits(), p.of_logits == 1u); }

fn activate(epilogue: u32, value: f32, old: f32) -> f32 {
  switch (epilogue) {
    case 1u: { return tanh_of(value); }
    case 2u: { return sigmoid(value); }
    case 3u: { return value * max(value, 0.0); }
    case 4u: { return old + value; }
    default: { return value; }
  }
}
