fn is_beside(job: Job) -> bool { return false; }
fn make_beside(job: Job, group: u32, thread: u32) {}
