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
/** Words of eight weights. A thread brings PIECE eights of a unit at a time; a row of a step has so many pieces. */
const WORDS = 4u / STEPS;
const PIECES = EIGHTS / PIECE;
/** Vectors of eight that a matrix has. */
const EIGHTS_OF_MATRIX = SIDE * SIDE / 8u;
/** Quads of a row of a subgroup's sums, and of all that go to memory at once. */
const ROW_QUADS = ACROSS * SIDE / 4u;
const ROUND_QUADS = TILES * SIDE * ROW_QUADS;
/** Arrays of SIDE rows that a team has of a step: first those of inputs, then those of weights. */
const WEIGHT_TILES = ROWS / SIDE;
const TEAM_TILES = INPUT_TILES + WEIGHT_TILES;
/** Matrices of sums that lie side by side in one of them. */
const FITTING = STRIDE / (SIDE / 4u);
const BESIDE = select(1u, FITTING, ACROSS % FITTING == 0u);
/** [BUFFERS, teams, TEAM_TILES], eight f16 a vector: as single numbers they would be written one by one. Then sums. */
var<workgroup> tiles: array<array<vec4u, SIDE * STRIDE>, max(BUFFERS * TEAMS * TEAM_TILES, TEAMS * TILES * ACROSS / BESIDE)>;

struct Piece {
  bits: vec4u,
  scale: f32,
}

/** The weights at `index` of the step that begins at eight `first`; those of a block's rows lie side by side. */
fn weights_at(job: Job, block: u32, blocks: u32, index: u32, first: u32) -> Piece {
  let own = min(block + index / (BLOCK * PIECES), blocks - 1u);
  let row = index % BLOCK;
  let eight = first + index / BLOCK % PIECES * PIECE;
  let unit = min(eight / STEPS, job.units - 1u);
  let at = job.weight + (own * job.units + unit) * BLOCK + row;
  let scale = scale_of(job, own, row, unit);
  if (PIECE == STEPS) { return Piece(weights[at], scale); }
  let word = 4u * at + eight % STEPS * WORDS;
  if (PIECE * WORDS == 2u) { return Piece(vec4u(words[word], words[word + 1u], 0u, 0u), scale); }
  return Piece(vec4u(words[word], 0u, 0u, 0u), scale);
}

/** Puts them where their team finds them. What is beyond the range of f16 is infinite there, and NaN stays. */
fn keep(buffer: u32, index: u32, piece: Piece) {
  let row = index / (BLOCK * PIECES) * BLOCK + index % BLOCK;
  let eight = index / BLOCK % PIECES * PIECE;
  let tile = (buffer * TEAMS + eight / OWN_EIGHTS) * TEAM_TILES + INPUT_TILES + row / SIDE;
  let at = row % SIDE * STRIDE + eight % OWN_EIGHTS;
  var bits = piece.bits;
#repeat e PIECE
  let w$e = decode(bits, piece.scale);
  tiles[tile][at + $eu] = vec4u(bitcast<vec2u>(vec4h(w$e[0])), bitcast<vec2u>(vec4h(w$e[1])));
  bits = next_step(bits);
#end e
}
