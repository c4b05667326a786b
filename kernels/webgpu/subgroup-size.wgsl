enable subgroup_size_control;
@subgroup_size(LANES)
