// The position of a thread within the subgroups of its workgroup, whatever their size.
enable subgroups;
var<private> lane: u32;
var<private> lanes: u32;
var<private> subgroup: u32;
var<private> subgroups: u32;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_invocation_id) own_lane: u32,
  @builtin(subgroup_size) size: u32,
  @builtin(subgroup_id) own_subgroup: u32,
  @builtin(num_subgroups) count: u32,
) {
  lane = own_lane;
  lanes = size;
  subgroup = own_subgroup;
  subgroups = count;
  run(group, groups, thread);
}
