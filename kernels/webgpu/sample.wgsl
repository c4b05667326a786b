// Draws: mask → bias → penalties → temperature → top-k, top-p and min-p → draw, in the order of the reference. One workgroup a
// sample; samples of one slot are drawn one after the other by the workgroup of the first. Nothing is sorted: a score's
// bits, made to compare like the score, are searched for the place where counts and masses above it reach their limits.
#include "step.wgsl"
#include "philox.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  logits: u32,
  scores: u32, // scratch, [S, V]
  vocab: u32,
  slots: u32,
}
@group(1) @binding(0) var<uniform> p: Params;
/** A token's place: bit 31 in the prompt; the rest, unless 0, its count as f32. [slots + 1, V] */
@group(1) @binding(1) var<storage, read_write> seen: array<u32>;
/** Of each sample: token, its log-probability, the best ids, theirs. */
@group(1) @binding(2) var<storage, read_write> out: array<u32>;

const OUTPUT_WORDS = 42u;
const MAX_TOP = 20u;
const NOTHING = 0xffffffffu;
/** The score of a banned token, and what no other is below. */
const BAN = -3e38;
const BANNED = -1e38;
/** A count decays no further: the token was generated, however long ago. */
const LEAST_COUNT = 1e-30;

var<workgroup> shared_u: array<vec4u, WG>;
var<workgroup> shared_f: array<vec4f, WG>;
var<workgroup> shared_answer: vec4u;

fn key_of(score: f32) -> u32 {
  var bits = bitcast<u32>(score);
  if (bits == 0x80000000u) { bits = 0u; }
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn score_of(key: u32) -> f32 {
  return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) == 1u));
}

/** Sums over all threads, the same for each. */
fn sum_all(u: vec4u, f: vec4f, thread: u32) -> array<vec4u, 2> {
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
  return array<vec4u, 2>(a, bitcast<vec4u>(b));
}

/** Whether (key, id) ranks before another. */
fn is_before(a: vec2u, b: vec2u) -> bool {
  return a.x > b.x || (a.x == b.x && a.y < b.y);
}

/** The best (key, id) of all threads. */
fn best_of_all(own: vec2u, thread: u32) -> vec2u {
  shared_u[thread] = vec4u(own, 0u, 0u);
  workgroupBarrier();
  for (var half = WG / 2u; half > 0u; half >>= 1u) {
    if (thread < half && is_before(shared_u[thread + half].xy, shared_u[thread].xy)) {
      shared_u[thread] = shared_u[thread + half];
    }
    workgroupBarrier();
  }
  let best = workgroupUniformLoad(&shared_u[0]);
  workgroupBarrier();
  return best.xy;
}

/** Numbers that a thread reads at a time: alone, each would be waited for. */
const READS = 8u;

/** The best of V numbers that does not rank before `after`; all when that is (all ones, 0). */
fn best_from(at: u32, after: vec2u, thread: u32) -> vec2u {
  var best = vec2u(0u, NOTHING);
  for (var first = thread; first < p.vocab; first += READS * WG) {
#repeat j READS
    let i$j = first + $ju * WG;
    let score$j = arena[at + min(i$j, p.vocab - 1u)];
#end j
#repeat j READS
    let own$j = vec2u(key_of(score$j), i$j);
    if (i$j < p.vocab && is_before(own$j, best) && is_before(after, own$j)) { best = own$j; }
#end j
  }
  return best_of_all(best, thread);
}

struct Distribution {
  at: u32, // of the scores
  best: f32,
  temperature: f32,
}

/** Share of a score, that of the best being 1. */
fn share(d: Distribution, score: f32) -> f32 {
  return exp((score - d.best) / d.temperature);
}

/** How many keys are above each of four, and their mass; the words of the masses are the second vector. */
fn above(d: Distribution, keys: vec4u, thread: u32) -> array<vec4u, 2> {
  var counts = vec4u();
  var masses = vec4f();
  for (var first = thread; first < p.vocab; first += READS * WG) {
#repeat j READS
    let score$j = arena[d.at + min(first + $ju * WG, p.vocab - 1u)];
#end j
#repeat j READS
    if (first + $ju * WG < p.vocab && key_of(score$j) > keys.x) {
      let is_above = vec4u(key_of(score$j)) > keys;
      counts += select(vec4u(0u), vec4u(1u), is_above);
      masses += select(vec4f(0.0), vec4f(share(d, score$j)), is_above);
    }
#end j
  }
  return sum_all(counts, masses, thread);
}

/** Rounds of a search over all scores; the later ones look at those alone that are still between its ends. */
const PLAIN_ROUNDS = 4u;
/** Of a thread's scores, a bit each: those between the ends. */
var<private> between: array<u32, WORDS>;
/** Of those that have come to be above: their number, and their mass. */
var<private> count_above: u32;
var<private> mass_above: f32;

/** As above(), of keys that are between the ends. With `is_first` all scores are looked at. */
fn above_between(d: Distribution, low: u32, high: u32, keys: vec4u, is_first: bool, thread: u32) -> array<vec4u, 2> {
  if (is_first) {
    count_above = 0u;
    mass_above = 0.0;
    for (var w = 0u; w < WORDS; w++) { between[w] = 0u; }
    var n = 0u;
    for (var first = thread; first < p.vocab; first += READS * WG) {
#repeat j READS
      let score$j = arena[d.at + min(first + $ju * WG, p.vocab - 1u)];
#end j
      // READS of a word's 32 bits.
      var bits = 0u;
#repeat j READS
      if (first + $ju * WG < p.vocab && key_of(score$j) > low) { bits |= 1u << $ju; }
#end j
      between[n >> 5u] |= bits << (n & 31u);
      n += READS;
    }
  }
  var counts = vec4u();
  var masses = vec4f();
  for (var w = 0u; w < WORDS; w++) {
    for (var left = between[w]; left != 0u; left &= left - 1u) {
      let bit = countTrailingZeros(left);
      let score = arena[d.at + thread + WG * (32u * w + bit)];
      let key = key_of(score);
      if (key > low && key < high) {
        let is_above = vec4u(key) > keys;
        counts += select(vec4u(0u), vec4u(1u), is_above);
        masses += select(vec4f(0.0), vec4f(share(d, score)), is_above);
      } else {
        between[w] &= ~(1u << bit);
        if (key >= high) {
          count_above++;
          mass_above += share(d, score);
        }
      }
    }
  }
  return sum_all(counts + count_above, masses + mass_above, thread);
}

struct Limits {
  count: u32, // a key is within while fewer are above it,
  mass: f32, // and their mass is less,
  is_inclusive: bool, // or the same,
  share: f32, // and its own share is no less
}

fn is_within(d: Distribution, limits: Limits, key: u32, count: u32, mass: f32) -> bool {
  return count < limits.count && (mass < limits.mass || (limits.is_inclusive && mass <= limits.mass)) &&
    share(d, score_of(key)) >= limits.share;
}

/** The smallest key within the limits. Those from it on are; `high` is. */
fn last_within(d: Distribution, limits: Limits, first: u32, high_in: u32, thread: u32) -> u32 {
  if (thread == 0u) { shared_answer = vec4u(first, high_in, 0u, 0u); }
  let range = workgroupUniformLoad(&shared_answer);
  var low = range.x;
  var high = range.y;
  for (var round = 0u; low < high; round++) {
    let width = high - low;
    let keys = vec4u(
      low + (width >> 3u),
      low + (width >> 2u),
      low + (width >> 1u),
      low + (width >> 1u) + (width >> 2u),
    );
    var found: array<vec4u, 2>;
    if (round < PLAIN_ROUNDS) {
      found = above(d, keys, thread);
    } else {
      found = above_between(d, low, high, keys, round == PLAIN_ROUNDS, thread);
    }
    let masses = bitcast<vec4f>(found[1]);
    if (thread == 0u) {
      var next = vec2u(keys.w + 1u, high);
      for (var i = 4u; i > 0u; i--) {
        if (is_within(d, limits, keys[i - 1u], found[0][i - 1u], masses[i - 1u])) {
          next = vec2u(select(low, keys[max(i, 2u) - 2u] + 1u, i > 1u), keys[i - 1u]);
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

fn ties_at(d: Distribution, key: u32, thread: u32) -> Ties {
  // The next key above, the key itself included, that a token has.
  var found = NOTHING;
  for (var first = thread; first < p.vocab; first += READS * WG) {
#repeat j READS
    let key$j = key_of(arena[d.at + min(first + $ju * WG, p.vocab - 1u)]);
#end j
#repeat j READS
    if (key$j >= key) { found = min(found, key$j); }
#end j
  }
  let least = ~best_of_all(vec2u(~found, 0u), thread).x;
  let sums = above(d, vec4u(least - 1u, least, NOTHING, NOTHING), thread);
  let masses = bitcast<vec4f>(sums[1]);
  return Ties(least, sums[0].x - sums[0].y, sums[0].y, masses.y, share(d, score_of(least)));
}

/** The id of tie number `index`, by id. */
fn tie(d: Distribution, key: u32, index: u32, thread: u32) -> u32 {
  if (thread == 0u) { shared_answer = vec4u(index); }
  if (workgroupUniformLoad(&shared_answer).x == 0u) {
    var first = NOTHING;
    for (var at_once = thread; at_once < p.vocab; at_once += READS * WG) {
#repeat j READS
      let i$j = at_once + $ju * WG;
      let key$j = key_of(arena[d.at + min(i$j, p.vocab - 1u)]);
#end j
#repeat j READS
      if (key$j == key && i$j < p.vocab) { first = min(first, i$j); }
#end j
    }
    return best_of_all(vec2u(0u, first), thread).y;
  }
  var low = 0u;
  var high = p.vocab - 1u;
  while (low < high) {
    let middle = (low + high) / 2u;
    var count = 0u;
    for (var i = thread; i <= middle; i += WG) {
      if (key_of(arena[d.at + i]) == key) { count++; }
    }
    let total = sum_all(vec4u(count), vec4f(), thread)[0].x;
    if (thread == 0u) {
      shared_answer = select(vec4u(middle + 1u, high, 0u, 0u), vec4u(low, middle, 0u, 0u), total > index);
    }
    let next = workgroupUniformLoad(&shared_answer);
    low = next.x;
    high = next.y;
  }
  return low;
}

fn draw_nucleus(s: u32, d: Distribution, best: u32, u: f32, thread: u32) -> u32 {
  let top_k = bitcast<i32>(sample_int(s, 0u));
  let top_p = sample_float(s, 1u);
  let min_p = sample_float(s, 2u);
  let lowest = key_of(max(d.best - 100.0 * d.temperature, BANNED));
  let all = above(d, vec4u(lowest), thread);
  let total = bitcast<vec4f>(all[1]).x;
  var kept = total;
  var last = lowest + 1u;
  var last_ties = NOTHING;
  if (top_k > 0 || top_p < 1.0 || min_p > 0.0) {
    let limits = Limits(
      select(NOTHING, u32(max(top_k, 0)), top_k > 0),
      select(3e38, top_p * total, top_p < 1.0),
      false,
      min(min_p, 1.0),
    );
    let edge = ties_at(d, last_within(d, limits, last, best, thread), thread);
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
  let drawn_limits = Limits(NOTHING, target_mass, true, 0.0);
  let drawn = ties_at(d, last_within(d, drawn_limits, last, best, thread), thread);
  let room = select(drawn.count, min(drawn.count, last_ties), drawn.key == last);
  let index = u32(clamp(floor((target_mass - drawn.mass_above) / drawn.share), 0.0, f32(room - 1u)));
  return tie(d, drawn.key, index, thread);
}

/** Mask, bias and penalties, then the drawn token; NOTHING where the logits are not finite or all are banned. */
fn draw(s: u32, thread: u32) -> u32 {
  let raw = p.logits + sample_row(s) * p.vocab;
  let at = p.scores + s * p.vocab;
  let counts = sample_slot(s) * p.vocab;
  let mask = sample_int(s, 6u);
  let words = (p.vocab + 31u) / 32u;
  var bad = 0u;
  for (var at_once = thread; at_once < p.vocab; at_once += READS * WG) {
    // All are read before any is written.
#repeat j READS
    let i$j = at_once + $ju * WG;
    var logit$j = arena[raw + min(i$j, p.vocab - 1u)];
#end j
#repeat j READS
    if (i$j < p.vocab) {
      if ((bitcast<u32>(logit$j) & 0x7f800000u) == 0x7f800000u) { bad = 1u; }
      if (mask > 0u && ((mask_word((mask - 1u) * words + (i$j >> 5u)) >> (i$j & 31u)) & 1u) == 0u) { logit$j = BAN; }
      arena[at + i$j] = logit$j;
    }
#end j
  }
  let failures = sum_all(vec4u(bad), vec4f(), thread)[0];
  if (thread == 0u) { shared_answer = failures; }
  if (workgroupUniformLoad(&shared_answer).x > 0u) { return NOTHING; }
  storageBarrier();
  for (var i = bias_start(s) + thread; i < bias_start(s + 1u); i += WG) {
    let id = at + bias_id(i);
    arena[id] = max(arena[id] + bias_value(i), BAN);
  }
  storageBarrier();
  let presence = sample_float(s, 3u);
  let frequency = sample_float(s, 4u);
  let repetition = sample_float(s, 6u);
  if (presence != 0.0 || frequency != 0.0 || repetition != 1.0) {
    for (var i = thread; i < p.vocab; i += WG) {
      let mark = seen[counts + i];
      if (mark != 0u) {
        var score = arena[at + i];
        if (repetition != 1.0 && score > BANNED) {
          score *= select(repetition, 1.0 / repetition, score > 0.0);
        }
        let count = bitcast<f32>(mark & 0x7fffffffu);
        if (count > 0.0) { score -= presence + frequency * count; }
        arena[at + i] = score;
      }
    }
  }
  let best = best_from(at, vec2u(NOTHING, 0u), thread);
  if (best.x < key_of(BANNED)) { return NOTHING; }
  let temperature = sample_float(s, 0u);
  if (temperature <= 0.0 || sample_int(s, 0u) == 1u || sample_float(s, 1u) <= 0.0) { return best.y; }
  let key = vec2u(sample_int(s, 1u), sample_int(s, 2u));
  let position = sample_int(s, 3u);
  let stream = sample_int(s, 4u);
  let noise = sample_float(s, 7u);
  if (noise > 0.0) {
    for (var i = 4u * thread; i < p.vocab; i += 4u * WG) {
      let u = philox(key, position, stream, 1u + i / 4u);
      for (var j = 0u; j < min(4u, p.vocab - i); j++) {
        let score = arena[at + i + j];
        if (score > BANNED) { arena[at + i + j] = score / temperature + noise * u[j]; }
      }
    }
    storageBarrier();
    return best_from(at, vec2u(NOTHING, 0u), thread).y;
  }
  let u = philox(key, position, stream, 0u).x;
  return draw_nucleus(s, Distribution(at, score_of(best.x), temperature), best.x, u, thread);
}

/** Earlier counts decay, the token is counted. */
fn count(s: u32, token: u32, thread: u32) {
  let counts = sample_slot(s) * p.vocab;
  let decay = sample_float(s, 5u);
  for (var i = thread; i < p.vocab; i += WG) {
    if (decay == 1.0 && i != token) { continue; }
    let mark = seen[counts + i];
    var times = bitcast<f32>(mark & 0x7fffffffu);
    if (times > 0.0) { times = max(times * decay, LEAST_COUNT); }
    if (i == token) { times += 1.0; }
    seen[counts + i] = (mark & 0x80000000u) | bitcast<u32>(times);
  }
}

/** Log-probabilities of the logits as they came. */
fn report(s: u32, token: u32, top: u32, thread: u32) {
  let raw = p.logits + sample_row(s) * p.vocab;
  let place = s * OUTPUT_WORDS;
  var next = best_from(raw, vec2u(NOTHING, 0u), thread);
  let best = score_of(next.x);
  var sum = 0.0;
  for (var first = thread; first < p.vocab; first += READS * WG) {
#repeat j READS
    let logit$j = arena[raw + min(first + $ju * WG, p.vocab - 1u)];
#end j
#repeat j READS
    if (first + $ju * WG < p.vocab) { sum += exp(logit$j - best); }
#end j
  }
  let sums = sum_all(vec4u(), vec4f(sum), thread);
  let log_total = best + log(bitcast<vec4f>(sums[1]).x);
  if (thread == 0u) { out[place + 1u] = bitcast<u32>(arena[raw + token] - log_total); }
  for (var k = 0u; k < min(top, min(MAX_TOP, p.vocab)); k++) {
    if (thread == 0u) {
      out[place + 2u + k] = next.y;
      out[place + 2u + MAX_TOP + k] = bitcast<u32>(score_of(next.x) - log_total);
    }
    next = best_from(raw, next, thread);
  }
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let slot = sample_slot(group.x);
  for (var s = 0u; s < group.x; s++) {
    if (sample_slot(s) == slot) { return; }
  }
  for (var s = group.x; s < num_samples(); s++) {
    if (sample_slot(s) != slot) { continue; }
    let is_idle = row_slot(token_row(logit_token(sample_row(s)))) == IDLE;
    var token = NOTHING;
    if (!is_idle) { token = draw(s, thread); }
    if (thread == 0u) {
      out[s * OUTPUT_WORDS] = token;
      out[s * OUTPUT_WORDS + 1u] = 0x7fc00000u; // NaN
    }
    let top = bitcast<i32>(sample_int(s, 5u));
    if (token == NOTHING) { continue; }
    count(s, token, thread);
    if (top >= 0) { report(s, token, u32(top), thread); }
    storageBarrier();
  }
}
