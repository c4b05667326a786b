// Feeds the draws of the previous step: a row of the token −1 − s gets draw s. A row that must not run, because its
// draw is one of its stops or was not finite, becomes idle: it has no slot and draws nothing.
@group(0) @binding(0) var<storage, read_write> step: array<u32>;
@group(0) @binding(1) var<storage, read> draws: array<u32>;

const OUTPUT_WORDS = 42u;
/** As in step.wgsl. */
const RECORDS = 24u;
const IDLE = 0xffffffffu;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  for (var row = thread; row < step[1]; row += WG) {
    let own = RECORDS + 8u * row;
    let start = step[own + 4u];
    let at = RECORDS + 8u * start;
    let token = bitcast<i32>(step[at]);
    if (token >= 0) { continue; }
    let drawn = draws[u32(-1 - token) * OUTPUT_WORDS];
    var runs = bitcast<i32>(drawn) >= 0;
    for (var i = step[step[14] + row]; i < step[step[14] + row + 1u]; i++) {
      runs = runs && step[step[15] + i] != drawn;
    }
    step[at] = select(0u, drawn, runs);
    if (runs) { continue; }
    step[own + 6u] = IDLE;
    for (var t = start; t < step[own + 5u]; t++) { step[RECORDS + 8u * t + 3u] = IDLE; }
  }
}
