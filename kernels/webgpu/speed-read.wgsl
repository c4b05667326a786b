// Measures memory reads: a buffer once, 16 vectors per thread.
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<vec4u>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first = (group.x + group.y * 1024u) * 4096u + thread;
  var sum = vec4u();
#repeat i READS
  sum ^= values[first + 256u * $iu];
#end i
  // Never true, but the compiler cannot know that.
  let one = sum.x ^ sum.y ^ sum.z ^ sum.w;
  if (one == 0x5eed1e55u) { out[0] = one; }
}
