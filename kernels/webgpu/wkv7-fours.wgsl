// A token's arithmetic by N4 threads of each head, four channels each; a workgroup has HEADS of the step's heads. The sums are
// those of wkv7-token.wgsl, but each thread makes them itself: none waits for another twice.
@group(0) @binding(0) var<storage, read_write> arena: array<vec4f>;
const THREADS = HEADS * N4;
var<workgroup> fours: array<vec4f, THREADS>;
var<workgroup> others: array<vec4f, THREADS>;

#include "wkv7-four.wgsl"
