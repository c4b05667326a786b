// Products of many tokens: a workgroup makes a tile of DEEP·NT tokens by ACROSS·R outputs, a thread NT tokens by R outputs, of
// inputs and weights that come KQ quads at a time into shared memory. Each output's runs are summed as the lanes of linear.wgsl do it.
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS
const TOKENS = NT * DEEP;
const ROWS = R * ACROSS;
const THREADS = ACROSS * DEEP;
/** One is read while the other is written. */
const BUFFERS = 2u;
/** Pieces of a row of weights, as decode() makes them: of a step, and of all rows. */
const PIECES = KQ / QUADS;
const ALL_PIECES = ROWS * PIECES;
/** Vectors from one quad of inputs to the next, from one row of a thread to the next, from one quad of weights to the next. With PADDING
 * threads that write side by side write to different banks. */
const NEXT_INPUTS = TOKENS + PADDING;
const NEXT_ROW = ACROSS + PADDING;
const NEXT_WEIGHTS = R * NEXT_ROW;
var<workgroup> inputs: array<vec4f, BUFFERS * KQ * NEXT_INPUTS>;
var<workgroup> outputs: array<vec4f, BUFFERS * KQ * NEXT_WEIGHTS>;
var<private> totals: array<vec4f, R * NT4>;

struct Piece {
  bits: vec4u,
  scale: f32,
}

/** Behind the end of a row any. */
fn piece_at(job: Job, block: u32, row: u32, piece: u32) -> Piece {
  let unit = min(piece / STEPS, job.units - 1u);
  let at = job.weight + (block * job.units + unit) * BLOCK + row;
  let scale = scale_of(job, block, row, unit);
  if (STEPS == 1u) { return Piece(weights[at], scale); }
  let word = 4u * at + piece % STEPS * (4u / STEPS);
  if (STEPS == 2u) { return Piece(vec4u(words[word], words[word + 1u], 0u, 0u), scale); }
  return Piece(vec4u(words[word], 0u, 0u, 0u), scale);
}

/** Four inputs, zeros behind the end of a row. */
fn input_at(job: Job, first: u32, k: u32) -> vec4f {
  let width = job.units * UNIT;
  return select(vec4f(), x4(job, first, min(k, width - 4u)), vec4<bool>(k < width));
}

/** sum + w·x, one after the other. */
fn dot_from(w: vec4f, x: vec4f, sum: f32) -> f32 {
  return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

@compute @workgroup_size(ACROSS * DEEP)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first_block = group.y * (ROWS / BLOCK);
  let job = job_of(first_block);
  let blocks = (job.rows + BLOCK - 1u) / BLOCK;
  let block = first_block - job.first;
  if (block >= blocks) { return; }
  // 32 threads are 8 by 4, and neighbours share their weights: so any that read together read few vectors, from different banks.
  let column = thread / 2u % 8u + thread / 32u % (ACROSS / 8u) * 8u;
  let team = thread % 2u + thread / 16u % 2u * 2u + thread / 32u / (ACROSS / 8u) * 4u;
  let count = num_inputs();
  let t0 = group.x * TOKENS;
  let run = (job.units + SEGMENTS - 1u) / SEGMENTS * STEPS;
  let pieces = job.units * STEPS;

  // What a thread brings of a step, and where to: inputs of four, pieces of weights.
#repeat l INPUTS
  let quad$l = ($lu * THREADS + thread) % KQ;
  let from$l = job.x + min(t0 + ($lu * THREADS + thread) / KQ, count - 1u) * job.columns;
  let input_place$l = quad$l * NEXT_INPUTS + ($lu * THREADS + thread) / KQ;
  var input$l = input_at(job, from$l, 4u * quad$l);
#end l
#repeat l WEIGHTS_EACH
  let own$l = ($lu * THREADS + thread) / (BLOCK * PIECES);
  let piece$l = ($lu * THREADS + thread) / BLOCK % PIECES;
  let row$l = own$l * BLOCK + thread % BLOCK;
  let place$l = piece$l * QUADS * NEXT_WEIGHTS + (row$l / (4u * ACROSS) * 4u + row$l % 4u) * NEXT_ROW + row$l % (4u * ACROSS) / 4u;
  let block$l = min(block + own$l, blocks - 1u);
  let isOwn$l = $lu * THREADS + thread < ALL_PIECES;
  var weight$l = Piece();
  if (isOwn$l) { weight$l = piece_at(job, block$l, thread % BLOCK, piece$l); }
#end l
  var sums: array<f32, R * NT>;
  var in_run = 0u;
#repeat l INPUTS
  inputs[0u * KQ * NEXT_INPUTS + input_place$l] = input$l;
#end l
#repeat l WEIGHTS_EACH
  if (isOwn$l) {
    let fours = decode(weight$l.bits, weight$l.scale);
#repeat q QUADS
    outputs[0u * KQ * NEXT_WEIGHTS + place$l + $qu * NEXT_WEIGHTS] = select(vec4f(), fours[$q], vec4<bool>(piece$l < pieces));
#end q
  }
#end l
  // A step is multiplied while the operands of the next are on their way to the other buffer. Behind the last step all are zeros.
  for (var two = 0u; two < pieces; two += BUFFERS * PIECES) {
#repeat b BUFFERS
    workgroupBarrier();
    let after$b = two + $bu * PIECES + PIECES;
#repeat l INPUTS
    input$l = input_at(job, from$l, 4u * (QUADS * (after$b) + quad$l));
#end l
#repeat l WEIGHTS_EACH
    if (isOwn$l) { weight$l = piece_at(job, block$l, thread % BLOCK, after$b + piece$l); }
#end l
    for (var part = 0u; part < PIECES; part++) {
#repeat q QUADS
      {
        let at = $bu * KQ + part * QUADS + $qu;
#repeat j R
        let w$j = outputs[at * NEXT_WEIGHTS + $ju * NEXT_ROW + column];
#end j
#repeat i NT
        let x$i = inputs[at * NEXT_INPUTS + $iu * DEEP + team];
#repeat j R
        sums[$ju * NT + $iu] = dot_from(w$j, x$i, sums[$ju * NT + $iu]);
#end j
#end i
      }
#end q
      in_run++;
      if (in_run == run) {
        in_run = 0u;
#repeat j R
#repeat f NT4
        totals[$ju * NT4 + $fu] += vec4f(sums[$ju * NT + 4u * $fu], sums[$ju * NT + 4u * $fu + 1u], sums[$ju * NT + 4u * $fu + 2u], sums[$ju * NT + 4u * $fu + 3u]);
#end f
#repeat i NT
        sums[$ju * NT + $iu] = 0.0;
#end i
#end j
      }
    }
#repeat l INPUTS
    inputs[(1u - $bu) * KQ * NEXT_INPUTS + input_place$l] = input$l;
#end l
#repeat l WEIGHTS_EACH
    if (isOwn$l) {
      let fours = decode(weight$l.bits, weight$l.scale);
#repeat q QUADS
      outputs[(1u - $bu) * KQ * NEXT_WEIGHTS + place$l + $qu * NEXT_WEIGHTS] = select(vec4f(), fours[$q], vec4<bool>(after$b + piece$l < pieces));
#end q
    }
#end l
#end b
  }
#repeat i NT
  if (t0 + $iu * DEEP + team < count) {
#repeat f FOURS
    store4(job, t0 + $iu * DEEP + team, block * BLOCK + $fu * 4u * ACROSS + 4u * column, vec4f(
      totals[4u * $fu * NT4 + $iu / 4u][$iu % 4u] + sums[4u * $fu * NT + $iu],
      totals[(4u * $fu + 1u) * NT4 + $iu / 4u][$iu % 4u] + sums[(4u * $fu + 1u) * NT + $iu],
      totals[(4u * $fu + 2u) * NT4 + $iu / 4u][$iu % 4u] + sums[(4u * $fu + 2u) * NT + $iu],
      totals[(4u * $fu + 3u) * NT4 + $iu / 4u][$iu % 4u] + sums[(4u * $fu + 3u) * NT + $iu]));
#end f
  }
#end i
}
