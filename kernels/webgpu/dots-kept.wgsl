// Inputs of dot products as linear-round.wgsl has left them.
@group(1) @binding(3) var<storage, read> rounded: array<vec4u>;
/** The same buffer. */
@group(1) @binding(4) var<storage, read> units: array<f32>;

/** Of a token, in vectors. */
fn room_of(groups: u32) -> u32 { return PARTS * groups + (groups + 3u) / 4u; }
fn groups_of(job: Job) -> u32 { return (job.columns + 31u) / 32u; }

fn bring(job: Job, t0: u32, count: u32, start: u32, thread: u32) {}
fn input_at(job: Job, t: u32, i: u32, part: u32, start: u32, place: u32) -> vec4u {
  return rounded[job.halves + t * room_of(groups_of(job)) + part * groups_of(job) + start + place];
}
fn unit_at(job: Job, t: u32, i: u32, start: u32, place: u32) -> f32 {
  return units[4u * (job.halves + t * room_of(groups_of(job)) + PARTS * groups_of(job)) + start + place];
}
