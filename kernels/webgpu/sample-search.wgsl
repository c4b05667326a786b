// Where a sample's list ends, and where its draw falls in it: counts and masses of the bins say in which bin, whose members
// are then counted and weighed. Their keys are searched, four at a time.
#include "draw.wgsl"
var<workgroup> shared_f: array<vec4f, WG>;
var<workgroup> shared_answer: vec4u;

struct Sums {
  counts: vec4u,
  masses: vec4f,
}

/** Sums over all threads, the same for each. */
fn sum_all(u: vec4u, f: vec4f, thread: u32) -> Sums {
  shared_u[thread] = u;
  shared_f[thread] = f;
  workgroupBarrier();
  // Each time an eighth of them adds up eight.
  for (var left = WG; left > 1u; left = (left + 7u) / 8u) {
    let next = (left + 7u) / 8u;
    if (thread < next) {
      var a = shared_u[thread];
      var b = shared_f[thread];
      for (var i = thread + next; i < left; i += next) {
        a += shared_u[i];
        b += shared_f[i];
      }
      shared_u[thread] = a;
      shared_f[thread] = b;
    }
    workgroupBarrier();
  }
  let a = shared_u[0];
  let b = shared_f[0];
  workgroupBarrier();
  return Sums(a, b);
}

struct Bin {
  index: u32,
  count: u32, // above it
  mass: f32,
  keys: vec2u, // least and greatest
}

fn mass_of(at: u32, bin: u32) -> f32 {
  let high = f32(atomicLoad(&bins[at + MASS_HIGH + bin]));
  let low = f32(atomicLoad(&bins[at + MASS_LOW + bin]));
  return fma(high, f32(1u << LOW_BITS), low) * (exp(-distance_of(bin)) / MASS_UNIT);
}

/** Bins of a thread; the last may have none. */
const EACH = (BINS + WG - 1u) / WG;

/** What is above a thread's bins, and the mass of all. */
struct Above {
  count: u32,
  mass: f32,
  total: f32,
}

fn above_own(at: u32, thread: u32) -> Above {
  var count = 0u;
  var mass = 0.0;
  for (var bin = thread * EACH; bin < min((thread + 1u) * EACH, BINS); bin++) {
    count += atomicLoad(&bins[at + bin]);
    mass += mass_of(at, bin);
  }
  shared_u[thread].x = count;
  shared_f[thread].x = mass;
  workgroupBarrier();
  for (var reach = 1u; reach < WG; reach <<= 1u) {
    var more_count = 0u;
    var more_mass = 0.0;
    if (thread >= reach) {
      more_count = shared_u[thread - reach].x;
      more_mass = shared_f[thread - reach].x;
    }
    workgroupBarrier();
    shared_u[thread].x += more_count;
    shared_f[thread].x += more_mass;
    workgroupBarrier();
  }
  var above = Above(0u, 0.0, shared_f[WG - 1u].x);
  if (thread > 0u) {
    above.count = shared_u[thread - 1u].x;
    above.mass = shared_f[thread - 1u].x;
  }
  workgroupBarrier();
  return above;
}

struct Limits {
  count: u32, // a key is within while fewer are above it,
  mass: f32, // and their mass is less,
  is_inclusive: bool, // or the same,
  share: f32, // and its own share is no less
}

fn is_below(limits: Limits, count: u32, mass: f32) -> bool {
  return count < limits.count && (mass < limits.mass || (limits.is_inclusive && mass <= limits.mass));
}

/** The last bin, up to `most`, whose greatest key is within the limits. */
fn last_bin(at: u32, above: Above, limits: Limits, most: u32, thread: u32) -> Bin {
  var found = 0u;
  var found_above = vec2u();
  var count = above.count;
  var mass = above.mass;
  for (var bin = thread * EACH; bin < min((thread + 1u) * EACH, BINS); bin++) {
    let own = atomicLoad(&bins[at + bin]);
    if (own > 0u && bin <= most && is_below(limits, count, mass)) {
      found = bin + 1u;
      found_above = vec2u(count, bitcast<u32>(mass));
    }
    count += own;
    mass += mass_of(at, bin);
  }
  let last = best_of_all(vec2u(found, 0u), thread).x;
  if (found == last) { shared_answer = vec4u(last - 1u, found_above, 0u); }
  let answer = workgroupUniformLoad(&shared_answer);
  let keys = vec2u(~atomicLoad(&bins[at + LEAST_KEY + answer.x]), atomicLoad(&bins[at + MOST_KEY + answer.x]));
  return Bin(answer.x, answer.y, bitcast<f32>(answer.z), keys);
}

/** Of a thread's scores, a bit each: those of a bin. */
var<private> members: array<u32, WORDS>;

fn find_members(d: Distribution, bin: Bin, thread: u32) {
  for (var w = 0u; w < WORDS; w++) { members[w] = 0u; }
  var n = 0u;
  for (var first = thread; first < p.vocab; first += CHUNK) {
#repeat j READS
    let key$j = key_of(arena[d.at + min(first + $ju * WG, p.vocab - 1u)]);
#end j
    // READS of a word's 32 bits.
    var bits = 0u;
#repeat j READS
    if (first + $ju * WG < p.vocab && key$j >= bin.keys.x && key$j <= bin.keys.y) { bits |= 1u << $ju; }
#end j
    members[n >> 5u] |= bits << (n & 31u);
    n += READS;
  }
}

fn member_id(thread: u32, word: u32, left: u32) -> u32 {
  return thread + WG * (32u * word + countTrailingZeros(left));
}

/** How many keys are above each of four of a bin, and their mass. */
fn above(d: Distribution, bin: Bin, keys: vec4u, thread: u32) -> Sums {
  var counts = vec4u();
  var masses = vec4f();
  for (var w = 0u; w < WORDS; w++) {
    for (var left = members[w]; left != 0u; left &= left - 1u) {
      let score = arena[d.at + member_id(thread, w, left)];
      let is_above = vec4u(key_of(score)) > keys;
      counts += select(vec4u(0u), vec4u(1u), is_above);
      masses += select(vec4f(0.0), vec4f(share(d, score)), is_above);
    }
  }
  let sums = sum_all(counts, masses, thread);
  return Sums(sums.counts + bin.count, sums.masses + bin.mass);
}

/** The smallest key of a bin within the limits, `least` or greater. Those from it on are; the greatest is. */
fn last_within(d: Distribution, limits: Limits, bin: Bin, least: u32, thread: u32) -> u32 {
  if (thread == 0u) { shared_answer = vec4u(max(bin.keys.x, least), bin.keys.y, 0u, 0u); }
  let range = workgroupUniformLoad(&shared_answer);
  var low = range.x;
  var high = range.y;
  while (low < high) {
    let width = high - low;
    let keys = vec4u(
      low + (width >> 3u),
      low + (width >> 2u),
      low + (width >> 1u),
      low + (width >> 1u) + (width >> 2u),
    );
    let found = above(d, bin, keys, thread);
    if (thread == 0u) {
      var next = vec2u(keys.w + 1u, high);
      for (var i = 4u; i > 0u; i--) {
        let key = keys[i - 1u];
        if (is_below(limits, found.counts[i - 1u], found.masses[i - 1u]) && share(d, score_of(key)) >= limits.share) {
          next = vec2u(select(low, keys[max(i, 2u) - 2u] + 1u, i > 1u), key);
        }
      }
      shared_answer = vec4u(next, 0u, 0u);
    }
    let next = workgroupUniformLoad(&shared_answer);
    low = next.x;
    high = next.y;
  }
  return high;
}

struct Ties {
  key: u32,
  count: u32,
  count_above: u32,
  mass_above: f32,
  share: f32,
}

fn ties_at(d: Distribution, bin: Bin, key: u32, thread: u32) -> Ties {
  // The next key above, the key itself included, that a token has.
  var found = NOTHING;
  for (var w = 0u; w < WORDS; w++) {
    for (var left = members[w]; left != 0u; left &= left - 1u) {
      let own = key_of(arena[d.at + member_id(thread, w, left)]);
      if (own >= key) { found = min(found, own); }
    }
  }
  let least = ~best_of_all(vec2u(~found, 0u), thread).x;
  let sums = above(d, bin, vec4u(least - 1u, least, NOTHING, NOTHING), thread);
  return Ties(least, sums.counts.x - sums.counts.y, sums.counts.y, sums.masses.y, share(d, score_of(least)));
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
    let total = sum_all(vec4u(own_ties(d, key, middle, thread).x), vec4f(), thread).counts.x;
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
  let all = above_own(at, thread);
  var kept = all.total;
  var last = 0u;
  var last_ties = NOTHING;
  var most = BINS - 1u;
  if (top_k > 0 || top_p < 1.0 || least_share(s) > 0.0) {
    let limits = Limits(
      select(NOTHING, u32(max(top_k, 0)), top_k > 0),
      select(3e38, top_p * all.total, top_p < 1.0),
      false,
      least_share(s),
    );
    let bin = last_bin(at, all, limits, atomicLoad(&bins[at + FLOOR]), thread);
    find_members(d, bin, thread);
    let edge = ties_at(d, bin, last_within(d, limits, bin, 0u, thread), thread);
    most = bin.index;
    last = edge.key;
    last_ties = edge.count;
    if (top_k > 0) { last_ties = min(last_ties, u32(top_k) - edge.count_above); }
    if (top_p < 1.0) {
      let room = ceil((limits.mass - edge.mass_above) / edge.share);
      last_ties = u32(clamp(room, 1.0, f32(last_ties)));
    }
    kept = edge.mass_above + f32(last_ties) * edge.share;
  }
  let target_mass = u * kept;
  let limits = Limits(NOTHING, target_mass, true, 0.0);
  let bin = last_bin(at, all, limits, most, thread);
  find_members(d, bin, thread);
  let drawn = ties_at(d, bin, last_within(d, limits, bin, last, thread), thread);
  let room = select(drawn.count, min(drawn.count, last_ties), drawn.key == last);
  let index = u32(clamp(floor((target_mass - drawn.mass_above) / drawn.share), 0.0, f32(room - 1u)));
  return tie(d, drawn.key, index, thread);
}
