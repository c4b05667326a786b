// Draws, in the order of the reference: mask → bias → penalties → temperature → top-k, top-p and min-p → draw. One
// workgroup per sample. The workgroup of a slot's first sample draws the slot's samples one after the other and
// computes the scores of the others itself. Nothing is sorted.
#include "draw.wgsl"
#include "sample-search.wgsl"
#include "philox.wgsl"

const OUTPUT_WORDS = 42u;
const MAX_TOP = 20u;

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

/** The drawn token; NOTHING where the logits are not finite or all are banned. */
fn draw(s: u32, is_later: bool, thread: u32) -> u32 {
  if (is_later) {
    make_scores(s, 0u, 1u, thread);
    storageBarrier();
  }
  let best = best_of_groups(s, select(p.groups, 1u, is_later), thread);
  if (!has_token(best)) { return NOTHING; }
  if (is_later) { decay_counts(s, 0u, 1u, thread); }
  if (is_greedy(s)) { return best.y; }
  let d = distribution_of(s, best.x);
  let key = vec2u(sample_int(s, 1u), sample_int(s, 2u));
  let position = sample_int(s, 3u);
  let stream = sample_int(s, 4u);
  let noise = sample_float(s, 7u);
  if (noise > 0.0) {
    for (var i = 4u * thread; i < p.vocab; i += 4u * WG) {
      let u = philox(key, position, stream, 1u + i / 4u);
      for (var j = 0u; j < min(4u, p.vocab - i); j++) {
        let score = arena[d.at + i + j];
        if (score > BANNED) { arena[d.at + i + j] = score / d.temperature + noise * u[j]; }
      }
    }
    storageBarrier();
    return best_from(d.at, vec2u(NOTHING, 0u), thread).y;
  }
  if (is_later) {
    fill_bins(s, best.x, 0u, 1u, thread);
    storageBarrier();
  }
  return draw_nucleus(s, d, philox(key, position, stream, 0u).x, thread);
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
  let log_total = best + log(sums_of(vec2f(sum, 0.0), thread).all.x);
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
  if (!is_first(group.x)) { return; }
  for (var s = group.x; s < num_samples(); s++) {
    if (sample_slot(s) != slot) { continue; }
    var token = NOTHING;
    if (!is_idle(s)) { token = draw(s, s > group.x, thread); }
    if (thread == 0u) {
      out[s * OUTPUT_WORDS] = token;
      out[s * OUTPUT_WORDS + 1u] = 0x7fc00000u; // NaN
    }
    let top = bitcast<i32>(sample_int(s, 5u));
    if (token == NOTHING) { continue; }
    storageBarrier();
    if (thread == 0u) {
      let at = slot * p.vocab + token;
      seen[at] = (seen[at] & 0x80000000u) | bitcast<u32>(bitcast<f32>(seen[at] & 0x7fffffffu) + 1.0);
    }
    if (top >= 0) { report(s, token, u32(top), thread); }
    storageBarrier();
  }
}
