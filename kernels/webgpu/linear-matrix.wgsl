// Products by the matrix units of a subgroup: inputs and weights are rounded to f16, their products summed in f32. A workgroup
// makes a tile of TOKENS by ROWS outputs, a subgroup DOWN by ACROSS matrices of it, SIDE by SIDE outputs each, over its team's
// part of the inputs. The sums of the teams are added in their order. Weights are decoded into shared memory; inputs come
// straight from memory, those of the next step ahead (matrix-steps.wgsl, matrix-steps-ahead.wgsl).
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
#include HALVES
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
/** Arrays of SIDE rows that a team has of a step. */
const TEAM_TILES = ROWS / SIDE;
/** [tokens / SIDE, columns / SIDE] matrices, so many to an array; see linear-halves.wgsl. */
@group(1) @binding(3) var<storage, read> halves: array<array<f16, LEFTS * SIDE * SIDE>>;
/** [BUFFERS, teams, TEAM_TILES], eight f16 a vector: as single numbers they would be written one by one. Then sums. */
var<workgroup> tiles: array<array<vec4u, SIDE * STRIDE>, max(BUFFERS * TEAMS * TEAM_TILES, TEAMS * TILES * ACROSS)>;

/** Read again behind the loop, which would otherwise hold all of the job in registers. */
var<workgroup> own_block: u32;

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
  let scale = scale_of(job, own, row, unit) * job.factor;
  if (PIECE == STEPS) { return Piece(weights[at], scale); }
  let word = 4u * at + eight % STEPS * WORDS;
  if (PIECE * WORDS == 2u) { return Piece(vec4u(words[word], words[word + 1u], 0u, 0u), scale); }
  return Piece(vec4u(words[word], 0u, 0u, 0u), scale);
}

/** Puts them where their team finds them. */
fn keep(buffer: u32, index: u32, piece: Piece) {
  let row = index / (BLOCK * PIECES) * BLOCK + index % BLOCK;
  let eight = index / BLOCK % PIECES * PIECE;
  let tile = (buffer * TEAMS + eight / OWN_EIGHTS) * TEAM_TILES + row / SIDE;
  let at = row % SIDE * STRIDE + eight % OWN_EIGHTS;
  var bits = piece.bits;
#repeat e PIECE
  tiles[tile][at + $eu] = eight_halves(bits, piece.scale);
  bits = next_step(bits);
#end e
}
#include BESIDE

#include SIZE
@compute @workgroup_size(TEAMS * HIGH * BROAD * LANES)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
) {
  let first_block = group.y * (ROWS / BLOCK);
  let job = job_of(first_block);
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = first_block - job.first;
  if (block >= blocks) { return; }
  if (thread == 0u) { own_block = first_block; }
  let count = num_inputs();
  let t0 = group.x * TOKENS;
  let team = subgroup / TILES;
  let high = subgroup % TILES / BROAD * DOWN;
  let broad = team * TEAM_TILES + subgroup % BROAD * ACROSS;
  /** Of a row of inputs: whole steps, and the matrices that it has in memory. */
  let eights = (job.columns + INPUTS - 1u) / INPUTS * EIGHTS;
  let matrices = (job.columns + PADDED - 1u) / PADDED * (PADDED / SIDE);
#repeat i DOWN
  let from$i = (job.halves / EIGHTS_OF_MATRIX + (t0 / SIDE + high + $iu) * matrices + team * STEP) / LEFTS;
#end i
#repeat i DOWN
#repeat j ACROSS
  var sum$i_$j = subgroup_matrix_result<f32, SIDE, SIDE>();
#end j
#repeat s STEP
  var next$i_$s = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&halves[from$i + $su / LEFTS], $su % LEFTS * SIDE * SIDE, SIDE);
#end s
#end i
#include STEPS_OF
  let ending = job_of(workgroupUniformLoad(&own_block));
  // Every subgroup puts a row of its sums in shared memory, and those of the teams are added. What they are added to in memory is
  // read meanwhile. Written out for each row, it would be more code than the products.
  let rounds = min(DOWN, (count - t0 + SIDE - 1u) / SIDE);
  for (var round = 0u; round < rounds; round++) {
    workgroupBarrier();
    switch (round) {
#repeat i DOWN
      case $iu: {
#repeat j ACROSS
        subgroupMatrixStore<row_major>(&tiles[subgroup * ACROSS + $ju], 0u, sum$i_$j, STRIDE);
#end j
      }
#end i
      default: {}
    }
#repeat l SUMS_EACH
    let q$l = $lu * THREADS + thread;
    let token$l = t0 + (q$l / (SIDE * ROW_QUADS) / BROAD * DOWN + round) * SIDE + q$l / ROW_QUADS % SIDE;
    let first$l = block * BLOCK + q$l / (SIDE * ROW_QUADS) % BROAD * ACROSS * SIDE + 4u * (q$l % ROW_QUADS);
    let isOwn$l = q$l < ROUND_QUADS && token$l < count;
    var had$l = Held();
    if (isOwn$l) { had$l = held4(ending, token$l, first$l); }
#end l
    workgroupBarrier();
#repeat l SUMS_EACH
    if (isOwn$l) {
      let matrix = q$l / (SIDE * ROW_QUADS) * ACROSS + q$l % ROW_QUADS / (SIDE / 4u);
      let at = q$l / ROW_QUADS % SIDE * STRIDE + q$l % (SIDE / 4u);
      var sum = vec4f();
#repeat m TEAMS
      sum += bitcast<vec4f>(tiles[$mu * TILES * ACROSS + matrix][at]);
#end m
      store_held(ending, token$l, first$l, sum * ending.inverse, had$l);
    }
#end l
  }
}
