// What the three kernels of a draw share. The first two go over the vocabulary by many workgroups: sample-scores.wgsl makes
// the scores, sample-bins.wgsl says how many of them, and what mass, are how far from the best. sample.wgsl then looks at the
// scores of one distance alone. Sums over workgroups are of whole numbers, so that their order does not matter.
#include "step.wgsl"
@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
struct Params {
  logits: u32,
  scores: u32, // scratch, [S, V]
  vocab: u32,
  groups: u32, // of the first two kernels, a sample
}
@group(1) @binding(0) var<uniform> p: Params;
/** A token's place: bit 31 in the prompt; the rest, unless 0, its count as f32. [slots + 1, V] */
@group(1) @binding(1) var<storage, read_write> seen: array<u32>;
/** Of each sample: token, its log-probability, the best ids, theirs. */
@group(1) @binding(2) var<storage, read_write> out: array<u32>;
/** [S]: of each bin the count, two halves of the mass, the greatest key, the least as ~key; a bin; a best of each group. */
@group(1) @binding(3) var<storage, read_write> bins: array<atomic<u32>>;

const BINS = 512u;
const MASS_LOW = BINS;
const MASS_HIGH = 2u * BINS;
const MOST_KEY = 3u * BINS;
const LEAST_KEY = 4u * BINS;
/** The last bin with a token of min-p. */
const FLOOR = 5u * BINS;
const BESTS = FLOOR + 1u;
/** Masses in units of 2⁻²⁸ of that of a bin's nearest; their lower 14 bits are summed apart, and no sum overflows. */
const MASS_UNIT = 268435456.0;
const LOW_BITS = 14u;

const NOTHING = 0xffffffffu;
/** The score of a banned token, and what no other is below. */
const BAN = -3e38;
const BANNED = -1e38;

var<workgroup> shared_u: array<vec4u, WG>;

fn key_of(score: f32) -> u32 {
  var bits = bitcast<u32>(score);
  if (bits == 0x80000000u) { bits = 0u; }
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn score_of(key: u32) -> f32 {
  return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) == 1u));
}

/** Whether (key, id) ranks before another. */
fn is_before(a: vec2u, b: vec2u) -> bool {
  return a.x > b.x || (a.x == b.x && a.y < b.y);
}

/** The best (key, id) of all threads. */
fn best_of_all(own: vec2u, thread: u32) -> vec2u {
  shared_u[thread] = vec4u(own, 0u, 0u);
  workgroupBarrier();
  for (var left = WG; left > 1u; left = (left + 7u) / 8u) {
    let next = (left + 7u) / 8u;
    if (thread < next) {
      var best = shared_u[thread].xy;
      for (var i = thread + next; i < left; i += next) {
        if (is_before(shared_u[i].xy, best)) { best = shared_u[i].xy; }
      }
      shared_u[thread] = vec4u(best, 0u, 0u);
    }
    workgroupBarrier();
  }
  let best = workgroupUniformLoad(&shared_u[0]);
  workgroupBarrier();
  return best.xy;
}

fn bins_of(s: u32) -> u32 { return s * (BESTS + 2u * p.groups); }

/** The slot's first sample of the step. Others wait for what it draws. */
fn is_first(s: u32) -> bool {
  for (var other = 0u; other < s; other++) {
    if (sample_slot(other) == sample_slot(s)) { return false; }
  }
  return true;
}

fn is_idle(s: u32) -> bool {
  return token_slot(logit_token(sample_row(s))) == IDLE;
}

fn is_greedy(s: u32) -> bool {
  return sample_float(s, 0u) <= 0.0 || sample_int(s, 0u) == 1u || sample_float(s, 1u) <= 0.0;
}

fn is_drawn_by_mass(s: u32) -> bool { return !is_greedy(s) && sample_float(s, 7u) <= 0.0; }

struct Distribution {
  at: u32, // of the scores
  best: f32,
  temperature: f32,
}

fn distribution_of(s: u32, best: u32) -> Distribution {
  return Distribution(p.scores + s * p.vocab, score_of(best), sample_float(s, 0u));
}

/** Share of a score, that of the best being 1. */
fn share(d: Distribution, score: f32) -> f32 {
  return exp((score - d.best) / d.temperature);
}

/** Of a score from the best. Never less for a lower score: so each bin is a run of the ranked scores. */
fn distance_to(d: Distribution, score: f32) -> f32 {
  return (d.best - score) * min(1.0 / d.temperature, 3e38);
}

/** min_p: no token of a smaller share is drawn. */
fn least_share(s: u32) -> f32 { return min(sample_float(s, 2u), 1.0); }

/** Below it there is no mass. */
fn lowest_of(d: Distribution) -> u32 { return key_of(max(d.best - 100.0 * d.temperature, BANNED)); }

/** By its distance from the best, which is 100 at most. */
fn bin_of(distance: f32) -> u32 {
  if (distance < 16.0) { return u32(24.0 * distance); }
  return min(384u + u32(1.5 * (distance - 16.0)), BINS - 1u);
}

/** The least distance of a bin. */
fn distance_of(bin: u32) -> f32 {
  return select(16.0 + f32(bin - 384u) / 1.5, f32(bin) / 24.0, bin < 384u);
}

/** A group goes over a chunk at once: a thread reads READS numbers, since alone each would be waited for. */
const CHUNK = READS * WG;

/** Mask, bias and penalties of a group's chunks, and the best of them; (all ones, …) where the logits are not finite. */
fn make_scores(s: u32, group: u32, groups: u32, thread: u32) {
  let raw = p.logits + sample_row(s) * p.vocab;
  let at = p.scores + s * p.vocab;
  let counts = sample_slot(s) * p.vocab;
  let mask = sample_int(s, 6u);
  let words = (p.vocab + 31u) / 32u;
  let own_bins = bins_of(s);
  for (var i = group * WG + thread; i < BESTS; i += groups * WG) { atomicStore(&bins[own_bins + i], 0u); }
  var is_bad = false;
  for (var first = group * CHUNK + thread; first < p.vocab; first += groups * CHUNK) {
    // All are read before any is written.
#repeat j READS
    let i$j = first + $ju * WG;
    var logit$j = arena[raw + min(i$j, p.vocab - 1u)];
#end j
#repeat j READS
    if (i$j < p.vocab) {
      if ((bitcast<u32>(logit$j) & 0x7f800000u) == 0x7f800000u) { is_bad = true; }
      if (mask > 0u && ((mask_word((mask - 1u) * words + (i$j >> 5u)) >> (i$j & 31u)) & 1u) == 0u) { logit$j = BAN; }
      arena[at + i$j] = logit$j;
    }
#end j
  }
  storageBarrier();
  for (var i = bias_start(s) + thread; i < bias_start(s + 1u); i += WG) {
    let id = bias_id(i);
    if (id / CHUNK % groups == group) { arena[at + id] = max(arena[at + id] + bias_value(i), BAN); }
  }
  storageBarrier();
  let presence = sample_float(s, 3u);
  let frequency = sample_float(s, 4u);
  let repetition = sample_float(s, 6u);
  let is_penalised = presence != 0.0 || frequency != 0.0 || repetition != 1.0;
  var best = vec2u(0u, NOTHING);
  for (var first = group * CHUNK + thread; first < p.vocab; first += groups * CHUNK) {
#repeat j READS
    let i$j = first + $ju * WG;
    var score$j = arena[at + min(i$j, p.vocab - 1u)];
    var mark$j = 0u;
    if (is_penalised) { mark$j = seen[counts + min(i$j, p.vocab - 1u)]; }
#end j
#repeat j READS
    if (i$j < p.vocab) {
      if (mark$j != 0u) {
        if (repetition != 1.0 && score$j > BANNED) {
          score$j *= select(repetition, 1.0 / repetition, score$j > 0.0);
        }
        let count = bitcast<f32>(mark$j & 0x7fffffffu);
        if (count > 0.0) { score$j -= presence + frequency * count; }
        arena[at + i$j] = score$j;
      }
      let own = vec2u(key_of(score$j), i$j);
      if (is_before(own, best)) { best = own; }
    }
#end j
  }
  if (is_bad) { best = vec2u(NOTHING, 0u); }
  best = best_of_all(best, thread);
  if (thread == 0u) {
    atomicStore(&bins[own_bins + BESTS + 2u * group], best.x);
    atomicStore(&bins[own_bins + BESTS + 2u * group + 1u], best.y);
  }
}

/** The best of a sample, of what its groups found. */
fn best_of_groups(s: u32, groups: u32, thread: u32) -> vec2u {
  let at = bins_of(s) + BESTS;
  var best = vec2u(0u, NOTHING);
  for (var g = thread; g < groups; g += WG) {
    let own = vec2u(atomicLoad(&bins[at + 2u * g]), atomicLoad(&bins[at + 2u * g + 1u]));
    if (is_before(own, best)) { best = own; }
  }
  return best_of_all(best, thread);
}

fn has_token(best: vec2u) -> bool { return best.x != NOTHING && best.x >= key_of(BANNED); }

/** A count decays no further: the token was generated, however long ago. */
const LEAST_COUNT = 1e-30;

/** The counts of a group's chunks, once it is known that a token will be drawn. */
fn decay_counts(s: u32, group: u32, groups: u32, thread: u32) {
  let decay = sample_float(s, 5u);
  if (decay == 1.0) { return; }
  let counts = sample_slot(s) * p.vocab;
  for (var first = group * CHUNK + thread; first < p.vocab; first += groups * CHUNK) {
#repeat j READS
    let i$j = first + $ju * WG;
    let mark$j = seen[counts + min(i$j, p.vocab - 1u)];
#end j
#repeat j READS
    let times$j = bitcast<f32>(mark$j & 0x7fffffffu);
    if (i$j < p.vocab && times$j > 0.0) {
      seen[counts + i$j] = (mark$j & 0x80000000u) | bitcast<u32>(max(times$j * decay, LEAST_COUNT));
    }
#end j
  }
}

/** What a group adds to the bins, in their order. */
var<workgroup> added: array<atomic<u32>, FLOOR>;

/** In units of that of the bin's nearest. */
fn mass_of(bin: u32, distance: f32) -> u32 { return u32(exp(distance_of(bin) - distance) * MASS_UNIT); }

fn add_to(bin: u32, mass: u32) {
  atomicAdd(&added[bin], 1u);
  atomicAdd(&added[bin + MASS_LOW], mass & ((1u << LOW_BITS) - 1u));
  atomicAdd(&added[bin + MASS_HIGH], mass >> LOW_BITS);
}

/** Adds a group's chunks to the bins. */
fn fill_bins(s: u32, best: u32, group: u32, groups: u32, thread: u32) {
  let d = distribution_of(s, best);
  let lowest = lowest_of(d);
  let own_bins = bins_of(s);
  let least = least_share(s);
  var floor_bin = 0u;
  for (var i = thread; i < FLOOR; i += WG) { atomicStore(&added[i], 0u); }
  workgroupBarrier();
  for (var first = group * CHUNK + thread; first < p.vocab; first += groups * CHUNK) {
#repeat j READS
    let i$j = first + $ju * WG;
    let score$j = arena[d.at + min(i$j, p.vocab - 1u)];
#end j
#repeat j READS
    if (i$j < p.vocab && key_of(score$j) > lowest) {
      let key = key_of(score$j);
      let distance = distance_to(d, score$j);
      let bin = bin_of(distance);
      add_to(bin, mass_of(bin, distance));
      atomicMax(&added[bin + MOST_KEY], key);
      atomicMax(&added[bin + LEAST_KEY], ~key);
      if (share(d, score$j) >= least) { floor_bin = max(floor_bin, bin); }
    }
#end j
  }
  workgroupBarrier();
  for (var bin = thread; bin < BINS; bin += WG) {
    let own = own_bins + bin;
    if (atomicLoad(&added[bin]) == 0u) { continue; }
    atomicAdd(&bins[own], atomicLoad(&added[bin]));
    atomicAdd(&bins[own + MASS_LOW], atomicLoad(&added[bin + MASS_LOW]));
    atomicAdd(&bins[own + MASS_HIGH], atomicLoad(&added[bin + MASS_HIGH]));
    atomicMax(&bins[own + MOST_KEY], atomicLoad(&added[bin + MOST_KEY]));
    atomicMax(&bins[own + LEAST_KEY], atomicLoad(&added[bin + LEAST_KEY]));
  }
  if (floor_bin > 0u) { atomicMax(&bins[own_bins + FLOOR], floor_bin); }
}
