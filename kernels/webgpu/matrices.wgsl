// Shared by the products by the matrix units of a subgroup: inputs and weights are rounded to f16, their products summed in f32. A
// workgroup makes a tile of TOKENS by ROWS outputs, a subgroup DOWN by ACROSS matrices of it, SIDE by SIDE outputs each, over
// its team's part of the inputs. The sums of the teams are added in their order. Weights are decoded into shared memory.
//
// A matrix is named by the number of an array that begins with it, and a constant place within: Dawn wraps a load whose place
// it cannot check beforehand in a branch, which no compiler moves anything across.
enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS
const TOKENS = HIGH * DOWN * SIDE;
const ROWS = BROAD * ACROSS * SIDE;
const TILES = HIGH * BROAD;
const THREADS = TEAMS * TILES * LANES;
/** Vectors of eight that a row of a matrix has. */
const WIDE = SIDE / 8u;
/** Inputs of a step, and a team's part of them. */
const INPUTS = TEAMS * STEP * SIDE;
const EIGHTS = INPUTS / 8u;
const OWN_EIGHTS = EIGHTS / TEAMS;
/** Vectors of eight from one row of a tile to the next: one more than it has, so that rows lie in different banks. */
const STRIDE = STEP * WIDE + 1u;
/** Words of eight weights. */
const WORDS = 4u / STEPS;
/** Vectors of eight that a matrix has, and quads of sums. */
const EIGHTS_OF_MATRIX = SIDE * SIDE / 8u;
const QUADS_OF_SUMS = SIDE * SIDE / 4u;
/** [BUFFERS, teams, rows / SIDE] of SIDE rows, eight f16 a vector: as single numbers they would be written one by one. */
var<workgroup> outputs: array<array<vec4u, SIDE * STRIDE>, BUFFERS * TEAMS * BROAD * ACROSS>;
/** Of each subgroup a matrix of sums, on its way to memory. */
var<workgroup> sums: array<array<f32, SIDE * SIDE>, TEAMS * TILES>;

struct Eight {
  bits: vec4u,
  scale: f32,
}

/** The eight weights at `index` of the step that begins at `first`; those of a block's rows lie side by side. */
fn weights_at(job: Job, block: u32, blocks: u32, index: u32, first: u32) -> Eight {
  let own = min(block + index / (BLOCK * EIGHTS), blocks - 1u);
  let row = index % BLOCK;
  let eight = first + index / BLOCK % EIGHTS;
  let unit = min(eight / STEPS, job.units - 1u);
  let at = job.weight + (own * job.units + unit) * BLOCK + row;
  let scale = scale_of(job, own, row, unit);
  if (WORDS == 4u) { return Eight(weights[at], scale); }
  let word = 4u * at + eight % STEPS * WORDS;
  if (WORDS == 2u) { return Eight(vec4u(words[word], words[word + 1u], 0u, 0u), scale); }
  return Eight(vec4u(words[word], 0u, 0u, 0u), scale);
}

/** Puts them where their team finds them. What is beyond the range of f16 is infinite there, and NaN stays. */
fn keep(buffer: u32, index: u32, bits: vec4u, scale: f32) {
  let row = index / (BLOCK * EIGHTS) * BLOCK + index % BLOCK;
  let eight = index / BLOCK % EIGHTS;
  let tile = (buffer * TEAMS + eight / OWN_EIGHTS) * (ROWS / SIDE) + row / SIDE;
  let w = decode(bits, scale);
  let halves = vec4u(bitcast<vec2u>(vec4h(w[0])), bitcast<vec2u>(vec4h(w[1])));
  outputs[tile][row % SIDE * STRIDE + eight % OWN_EIGHTS] = halves;
}
