// Outputs that a dot product of bytes reads are rounded, too, where it finds them: as linear-round.wgsl would, once a workgroup has
// all of a group.
@group(2) @binding(0) var<storage, read_write> as_bytes: array<u32>;
const IS_KEPT = true;
const NOT_KEPT = 0xffffffffu;
fn is_whole(to: u32) -> bool { return true; }
/** Of a group. */
const EIGHTS = 4u;
#include ORDER
#include "dots-round.wgsl"
/** Of OUTPUTS, KEPT_FOURS each: channel c is at c / 4 % KEPT_FOURS. */
var<workgroup> fours_kept: array<vec4f, OUTPUTS * KEPT_FOURS>;

/** Four channels from c on of output i. */
fn keep_four(i: u32, to: u32, columns: u32, t: u32, c: u32, four: vec4f) { fours_kept[i * KEPT_FOURS + c / 4u % KEPT_FOURS] = four; }

/**
 * Channels [first, after), whole groups of them, or to the end of a row; each thread rounds eight. Output i is token
 * t + i · each.
 */
fn keep_all(columns: u32, t: u32, each: u32, first: u32, after: u32, thread: u32) {
  workgroupBarrier();
  let groups = (columns + 31u) / 32u;
  for (var own = thread; own < OUTPUTS * KEPT_FOURS / 2u; own += THREADS) {
    let i = own / (KEPT_FOURS / 2u);
    let c = first + 8u * (own % (KEPT_FOURS / 2u));
    let to = kept_at(i);
    if (c < after && to != NOT_KEPT) {
      let all = i * KEPT_FOURS + c / 32u * 8u % KEPT_FOURS;
      var largest = 0u;
#repeat k EIGHTS
      largest = max(largest, largest_of(fours_kept[all + 2u * $ku], fours_kept[all + 2u * $ku + 1u]));
#end k
      let part = c / 8u % EIGHTS;
      let eight = rounded_eight(fours_kept[all + 2u * part], fours_kept[all + 2u * part + 1u], largest);
      let begin = 4u * (to + (t + i * each) * (EIGHTS * groups + (groups + 3u) / 4u));
      let at = begin + 4u * (part * groups + c / 32u);
      as_bytes[at] = eight.x;
      as_bytes[at + 1u] = eight.y;
      as_bytes[at + 2u] = eight.z;
      as_bytes[at + 3u] = eight.w;
      if (part == 0u) { as_bytes[begin + 4u * EIGHTS * groups + c / 32u] = bitcast<u32>(scale_of_inputs(largest)); }
    }
  }
}
