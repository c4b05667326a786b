-- The named keys of a cluster: one list, as keys.json has it on a server without one. version: grows with every change.
create table key_list (
  one boolean primary key default true check (one),
  body text not null,
  version bigint not null default 1
);
