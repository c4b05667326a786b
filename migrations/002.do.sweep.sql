-- When somebody last began to look for blobs that no state is in.
alter table cluster add column swept timestamptz not null default now();
