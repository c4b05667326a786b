// Where a sample's list ends, and where its draw falls in it: counts and masses of the bins say in which bin. Its members are put
// into bins by their keys, then those of one such bin likewise, until all have the same key.
#include "draw.wgsl"
const RUNS = 32u;
const RUN = (WG + RUNS - 1u) / RUNS;
/** Of each thread; one more for each run, so that what is read together lies apart. */
var<workgroup> shared_f: array<vec2f, WG + RUNS>;
var<workgroup> shared_runs: array<vec2f, RUNS>;
var<workgroup> shared_answer: vec4u;
var<workgroup> shared_last: atomic<u32>;

struct Sums {
  before: vec2f, // of the threads before
  all: vec2f,
}

/** Of two numbers of each thread: counts below 2^24, masses. */
fn sums_of(own: vec2f, thread: u32) -> Sums {
  let run = thread / RUN;
  shared_f[thread + run] = own;
  workgroupBarrier();
  if (thread < RUNS) {
    var sum = vec2f();
    for (var i = thread * RUN; i < min((thread + 1u) * RUN, WG); i++) { sum += shared_f[i + thread]; }
    shared_runs[thread] = sum;
  }
  workgroupBarrier();
  var sums = Sums();
  for (var i = 0u; i < RUNS; i++) {
    let own = shared_runs[i];
    if (i < run) { sums.before += own; }
    sums.all += own;
  }
  for (var i = run * RUN; i < thread; i++) { sums.before += shared_f[i + run]; }
  workgroupBarrier();
  return sums;
}

/** Count and mass of a bin of a sample, or, with a unit of mass, of those that `added` has. */
fn bin_at(at: u32, bin: u32, unit: f32) -> vec2f {
  var own = vec3u(atomicLoad(&added[bin]), atomicLoad(&added[bin + MASS_LOW]), atomicLoad(&added[bin + MASS_HIGH]));
  var by = unit;
  if (unit == 0.0) {
    own = vec3u(atomicLoad(&bins[at + bin]), atomicLoad(&bins[at + bin + MASS_LOW]), atomicLoad(&bins[at + bin + MASS_HIGH]));
    by = unit_of(bin);
  }
  return vec2f(f32(own.x), fma(f32(own.z), f32(1u << LOW_BITS), f32(own.y)) * by);
}

fn unit_of(bin: u32) -> f32 { return exp(-distance_of(bin)) / MASS_UNIT; }

/** Bins of a thread; the last may have none. */
const EACH = (BINS + WG - 1u) / WG;

/** What is above a thread's bins, and in all. */
fn sums_of_bins(at: u32, unit: f32, thread: u32) -> Sums {
  var own = vec2f();
  for (var bin = thread * EACH; bin < min((thread + 1u) * EACH, BINS); bin++) { own += bin_at(at, bin, unit); }
  return sums_of(own, thread);
}

struct Limits {
  count: u32, // a key is within while fewer are above it,
  mass: f32, // and their mass is less,
  is_inclusive: bool, // or the same,
  share: f32, // and its own share is no less
}

fn is_below(limits: Limits, above: vec2f) -> bool {
  return above.x < f32(limits.count) && (above.y < limits.mass || (limits.is_inclusive && above.y <= limits.mass));
}

struct Bin {
  index: u32,
  above: vec2f,
}

/** The last bin, up to `most`, whose greatest key is within the limits. `above`: a thread's bins. */
fn last_bin(at: u32, unit: f32, above: vec2f, limits: Limits, most: u32, thread: u32) -> Bin {
  if (thread == 0u) { atomicStore(&shared_last, 0u); }
  var found = 0u;
  var found_above = vec2f();
  var sum = above;
  for (var bin = thread * EACH; bin < min((thread + 1u) * EACH, BINS); bin++) {
    let own = bin_at(at, bin, unit);
    if (own.x > 0.0 && bin <= most && is_below(limits, sum)) {
      found = bin + 1u;
      found_above = sum;
    }
    sum += own;
  }
  workgroupBarrier();
  atomicMax(&shared_last, found);
  workgroupBarrier();
  let last = atomicLoad(&shared_last);
  if (found == last) { shared_answer = vec4u(last - 1u, bitcast<vec2u>(found_above), 0u); }
  let answer = workgroupUniformLoad(&shared_answer);
  return Bin(answer.x, bitcast<vec2f>(answer.yz));
}

/** The least and the greatest key of a bin. */
fn keys_of(at: u32, bin: u32) -> vec2u {
  return vec2u(~atomicLoad(&bins[at + LEAST_KEY + bin]), atomicLoad(&bins[at + MOST_KEY + bin]));
}

/** Of a thread's scores, a bit each: those of a bin. */
var<private> members: array<u32, WORDS>;

fn find_members(d: Distribution, keys: vec2u, thread: u32) {
  for (var w = 0u; w < WORDS; w++) { members[w] = 0u; }
  var n = 0u;
  for (var first = thread; first < p.vocab; first += CHUNK) {
#repeat j READS
    let key$j = key_of(arena[d.at + min(first + $ju * WG, p.vocab - 1u)]);
#end j
    // READS of a word's 32 bits.
    var bits = 0u;
#repeat j READS
    if (first + $ju * WG < p.vocab && key$j >= keys.x && key$j <= keys.y) { bits |= 1u << $ju; }
#end j
    members[n >> 5u] |= bits << (n & 31u);
    n += READS;
  }
}

fn member_id(thread: u32, word: u32, left: u32) -> u32 {
  return thread + WG * (32u * word + countTrailingZeros(left));
}

struct Ties {
  key: u32,
  count: u32,
  above: vec2f,
  share: f32,
}

/** Of a bin's members within the limits, of key `least` or a greater one: those with the smallest key. The greatest is within. */
fn last_within(d: Distribution, at: u32, bin: Bin, limits: Limits, least: u32, thread: u32) -> Ties {
  let keys = keys_of(at, bin.index);
  find_members(d, keys, thread);
  if (thread == 0u) { shared_answer = vec4u(max(keys.x, least), keys.y, 0u, 0u); }
  let range = workgroupUniformLoad(&shared_answer);
  var low = range.x;
  var high = range.y;
  var above = bin.above;
  loop {
    // Bins of as many keys, the greatest first.
    let shift = 23u - min(countLeadingZeros(high - low), 23u);
    for (var i = thread; i < MOST_KEY; i += WG) { atomicStore(&added[i], 0u); }
    workgroupBarrier();
    for (var w = 0u; w < WORDS; w++) {
      for (var left = members[w]; left != 0u; left &= left - 1u) {
        let score = arena[d.at + member_id(thread, w, left)];
        let key = key_of(score);
        if (key >= low && key <= high && share(d, score) >= limits.share) {
          add_to(min((high - key) >> shift, BINS - 1u), mass_of(bin.index, distance_to(d, score)));
        }
      }
    }
    workgroupBarrier();
    let unit = unit_of(bin.index);
    let own = last_bin(0u, unit, above + sums_of_bins(0u, unit, thread).before, limits, BINS - 1u, thread);
    above = own.above;
    high -= own.index << shift;
    if (shift == 0u) { return Ties(high, atomicLoad(&added[own.index]), above, share(d, score_of(high))); }
    low = max(low, high - ((1u << shift) - 1u));
  }
}

/** Of a thread's members with a key: how many have ids up to `last`, and the least id. */
fn own_ties(d: Distribution, key: u32, last: u32, thread: u32) -> vec2u {
  var ties = vec2u(0u, NOTHING);
  for (var w = 0u; w < WORDS; w++) {
    for (var left = members[w]; left != 0u; left &= left - 1u) {
      let id = member_id(thread, w, left);
      if (id <= last && key_of(arena[d.at + id]) == key) { ties = vec2u(ties.x + 1u, min(ties.y, id)); }
    }
  }
  return ties;
}

/** The id of tie number `index`, by id. */
fn tie(d: Distribution, key: u32, index: u32, thread: u32) -> u32 {
  if (thread == 0u) { shared_answer = vec4u(index); }
  if (workgroupUniformLoad(&shared_answer).x == 0u) {
    return best_of_all(vec2u(0u, own_ties(d, key, NOTHING, thread).y), thread).y;
  }
  var low = 0u;
  var high = p.vocab - 1u;
  while (low < high) {
    let middle = (low + high) / 2u;
    let total = u32(sums_of(vec2f(f32(own_ties(d, key, middle, thread).x), 0.0), thread).all.x);
    if (thread == 0u) {
      shared_answer = select(vec4u(middle + 1u, high, 0u, 0u), vec4u(low, middle, 0u, 0u), total > index);
    }
    let next = workgroupUniformLoad(&shared_answer);
    low = next.x;
    high = next.y;
  }
  return low;
}

fn draw_nucleus(s: u32, d: Distribution, u: f32, thread: u32) -> u32 {
  let top_k = bitcast<i32>(sample_int(s, 0u));
  let top_p = sample_float(s, 1u);
  let at = bins_of(s);
  let all = sums_of_bins(at, 0.0, thread);
  var kept = all.all.y;
  var last = 0u;
  var last_ties = NOTHING;
  var most = BINS - 1u;
  if (top_k > 0 || top_p < 1.0 || least_share(s) > 0.0) {
    let limits = Limits(
      select(NOTHING, u32(max(top_k, 0)), top_k > 0),
      select(3e38, top_p * kept, top_p < 1.0),
      false,
      least_share(s),
    );
    let bin = last_bin(at, 0.0, all.before, limits, atomicLoad(&bins[at + FLOOR]), thread);
    let edge = last_within(d, at, bin, limits, 0u, thread);
    most = bin.index;
    last = edge.key;
    last_ties = edge.count;
    if (top_k > 0) { last_ties = min(last_ties, u32(top_k) - u32(edge.above.x)); }
    if (top_p < 1.0) {
      let room = ceil((limits.mass - edge.above.y) / edge.share);
      last_ties = u32(clamp(room, 1.0, f32(last_ties)));
    }
    kept = edge.above.y + f32(last_ties) * edge.share;
  }
  let target_mass = u * kept;
  let limits = Limits(NOTHING, target_mass, true, 0.0);
  let bin = last_bin(at, 0.0, all.before, limits, most, thread);
  let drawn = last_within(d, at, bin, limits, last, thread);
  let room = select(drawn.count, min(drawn.count, last_ties), drawn.key == last);
  let index = u32(clamp(floor((target_mass - drawn.above.y) / drawn.share), 0.0, f32(room - 1u)));
  return tie(d, drawn.key, index, thread);
}
