// Products of many tokens by the matrix units of a subgroup: inputs (linear-halves.wgsl) and weights are rounded to f16, their
// products summed in f32. A workgroup makes a tile of TOKENS by ROWS outputs, a subgroup DOWN by ACROSS matrices of it, SIDE by
// SIDE outputs each, over its team's part of the inputs. The sums of the teams are added in their order.
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
/** Inputs of a step, and from one row of a tile to the next: 16 bytes more, so that rows lie in different banks. */
const INPUTS = TEAMS * STEP * SIDE;
const STRIDE = INPUTS + 8u;
const EIGHTS = INPUTS / 8u;
/** Words of eight weights. */
const WORDS = 4u / STEPS;
/** Quads of a matrix of sums. */
const QUADS_OF_SUMS = SIDE * SIDE / 4u;
@group(1) @binding(3) var<storage, read> halves: array<vec4u>;
var<workgroup> inputs: array<f16, TOKENS * STRIDE>;
var<workgroup> outputs: array<f16, ROWS * STRIDE>;
/** Of each subgroup a matrix of sums, on its way to memory. */
var<workgroup> sums: array<f32, TEAMS * TILES * SIDE * SIDE>;

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

/** NaN is not kept as in inputs: a model with such weights fails in its first step of few tokens. */
fn half_of(x: vec4f) -> vec4h { return vec4h(clamp(x, vec4f(-65504.0), vec4f(65504.0))); }

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
  let count = num_inputs();
  let t0 = group.x * TOKENS;
  let team = subgroup / TILES;
  let high = subgroup % TILES / BROAD * DOWN * SIDE;
  let broad = subgroup % BROAD * ACROSS * SIDE;
  /** Of a row of inputs, whole steps. */
  let eights = (job.columns + INPUTS - 1u) / INPUTS * EIGHTS;
#repeat i DOWN
#repeat j ACROSS
  var sum$i_$j = subgroup_matrix_result<f32, SIDE, SIDE>();
#end j
#end i
#repeat l INPUTS_EACH
  let token$l = min(t0 + ($lu * THREADS + thread) / EIGHTS, count - 1u);
  let from$l = job.halves + token$l * eights + ($lu * THREADS + thread) % EIGHTS;
  var input$l = halves[from$l];
#end l
#repeat l WEIGHTS_EACH
  var weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, 0u);
#end l
  for (var first = 0u; first < eights; first += EIGHTS) {
    workgroupBarrier();
#repeat l INPUTS_EACH
    {
      let at = ($lu * THREADS + thread) / EIGHTS * STRIDE + ($lu * THREADS + thread) % EIGHTS * 8u;
      let a = bitcast<vec4h>(input$l.xy);
      let b = bitcast<vec4h>(input$l.zw);
      inputs[at] = a.x;
      inputs[at + 1u] = a.y;
      inputs[at + 2u] = a.z;
      inputs[at + 3u] = a.w;
      inputs[at + 4u] = b.x;
      inputs[at + 5u] = b.y;
      inputs[at + 6u] = b.z;
      inputs[at + 7u] = b.w;
    }
#end l
#repeat l WEIGHTS_EACH
    {
      let index = $lu * THREADS + thread;
      let at = (index / (BLOCK * EIGHTS) * BLOCK + index % BLOCK) * STRIDE + index / BLOCK % EIGHTS * 8u;
      let w = decode(weight$l.bits, weight$l.scale);
      let a = half_of(w[0]);
      let b = half_of(w[1]);
      outputs[at] = a.x;
      outputs[at + 1u] = a.y;
      outputs[at + 2u] = a.z;
      outputs[at + 3u] = a.w;
      outputs[at + 4u] = b.x;
      outputs[at + 5u] = b.y;
      outputs[at + 6u] = b.z;
      outputs[at + 7u] = b.w;
    }
#end l
    workgroupBarrier();
    // The next step's operands are loaded while these are multiplied; behind the last they are not used.
    let next = min(first + EIGHTS, eights - EIGHTS);
#repeat l INPUTS_EACH
    input$l = halves[from$l + next];
#end l
#repeat l WEIGHTS_EACH
    weight$l = weights_at(job, block, blocks, $lu * THREADS + thread, next);
#end l
#repeat s STEP
    {
#repeat i DOWN
      let left$i = subgroupMatrixLoad<subgroup_matrix_left<f16, SIDE, SIDE>, row_major>(&inputs, (high + $iu * SIDE) * STRIDE + (team * STEP + $su) * SIDE, STRIDE);
#end i
#repeat j ACROSS
      let right$j = subgroupMatrixLoad<subgroup_matrix_right<f16, SIDE, SIDE>, col_major>(&outputs, (broad + $ju * SIDE) * STRIDE + (team * STEP + $su) * SIDE, STRIDE);
#end j
#repeat i DOWN
#repeat j ACROSS
      sum$i_$j = subgroupMatrixMultiplyAccumulate(left$i, right$j, sum$i_$j);
#end j
#end i
    }
#end s
  }
#repeat i DOWN
#repeat j ACROSS
  workgroupBarrier();
  subgroupMatrixStore<row_major>(&sums, subgroup * SIDE * SIDE, sum$i_$j, SIDE);
  workgroupBarrier();
  for (var q = thread; q < TILES * QUADS_OF_SUMS; q += THREADS) {
    let tile = q / QUADS_OF_SUMS;
    let t = t0 + (tile / BROAD * DOWN + $iu) * SIDE + q % QUADS_OF_SUMS / (SIDE / 4u);
    var sum = vec4f();
#repeat m TEAMS
    {
      let at = $mu * TILES * SIDE * SIDE + 4u * q;
      sum += vec4f(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
    }
#end m
    if (t < count) {
      store4(job, t, block * BLOCK + (tile % BROAD * ACROSS + $ju) * SIDE + q % (SIDE / 4u) * 4u, sum);
    }
  }
#end j
#end i
}
