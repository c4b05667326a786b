// Products of few tokens: eight outputs a workgroup, NT tokens along y, each weight read once for all of them.
#include "linear-jobs.wgsl"
#include OPERANDS
#include WEIGHTS

const OUTPUTS = 8u;
const THREADS = 64u; // OUTPUTS · LANES
var<workgroup> partials: array<f32, 512>; // NT · THREADS at most

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let job = job_of(group.x);
  let lane = thread & (LANES - 1u);
  let first = (group.x - job.first) * OUTPUTS;
  let row = min(first + thread / LANES, job.rows - 1u);
  let count = num_inputs();
  let t0 = group.y * NT;
  var sums: array<f32, NT>;
  var chunk = lane;
  while (chunk < job.chunks) {
    var held: array<Chunk, UNROLL>;
    for (var u = 0u; u < UNROLL; u++) {
      held[u] = load_chunk(job, row, min(chunk + u * LANES, job.chunks - 1u));
    }
    for (var u = 0u; u < UNROLL; u++) {
      if (chunk < job.chunks) {
        let w = decode(held[u]);
        for (var i = 0u; i < NT; i++) {
          let t = min(t0 + i, count - 1u);
          var sum = select(sums[i], 0.0, IS_SCALED);
          for (var q = 0u; q < CHUNK4; q++) {
            let x = x4(job, t, chunk * CHUNK + 4u * q);
            sum = fma(w[q].x, x.x, sum);
            sum = fma(w[q].y, x.y, sum);
            sum = fma(w[q].z, x.z, sum);
            sum = fma(w[q].w, x.w, sum);
          }
          sums[i] = select(sum, fma(scale_of(held[u]), sum, sums[i]), IS_SCALED);
        }
      }
      chunk += LANES;
    }
  }
  for (var i = 0u; i < NT; i++) { partials[i * THREADS + thread] = sums[i]; }
  workgroupBarrier();
  if (thread >= 2u * NT) { return; }
  let i = thread >> 1u;
  if (t0 + i >= count) { return; }
  let quad = 4u * (thread & 1u);
  store4(job, t0 + i, first + quad, vec4f(
    tree(i * THREADS + quad * LANES),
    tree(i * THREADS + (quad + 1u) * LANES),
    tree(i * THREADS + (quad + 2u) * LANES),
    tree(i * THREADS + (quad + 3u) * LANES),
  ));
}

fn tree(at: u32) -> f32 {
  return ((partials[at] + partials[at + 1u]) + (partials[at + 2u] + partials[at + 3u])) +
    ((partials[at + 4u] + partials[at + 5u]) + (partials[at + 6u] + partials[at + 7u]));
}
