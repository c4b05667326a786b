// Measures f32 arithmetic: multiply-adds in registers, eight chains per thread.
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<vec4u>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let by = bitcast<vec4f>(values[id.x & 255u]);
  var a = vec4f(f32(id.x));
  var b = vec4f(f32(id.y));
  for (var round = 0u; round < ROUNDS; round++) {
#repeat i SIXTEEN
    a = fma(a, by, by);
    b = fma(b, by, by);
#end i
  }
  let all = a + b;
  if (all.x + all.y + all.z + all.w == 1234.5) { out[0] = 1u; }
}
