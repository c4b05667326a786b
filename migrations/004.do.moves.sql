-- Who had a session before its owner: that one may still have its state in memory.
alter table session add column former text;

-- States that went from one worker to another, the latest; n counts all of them.
create table move (
  n bigserial primary key,
  at timestamptz not null default now(),
  model text not null,
  id text not null,
  from_worker text not null,
  to_worker text not null,
  is_direct boolean not null,
  ms real not null
);
