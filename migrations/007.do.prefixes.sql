-- Beginnings of prompts that several requests had in common, for all workers of a model. hash: of all its tokens; head: of the
-- first ones, by which it is looked for. key: its state, among those of table state. used: when somebody last began with it.
create table prefix (
  model text not null,
  tenant text not null,
  hash text not null,
  head text not null,
  tokens integer not null,
  key text not null,
  used timestamptz not null default now(),
  primary key (model, tenant, hash)
);
create index prefix_by_head on prefix (model, tenant, head, tokens);
create index prefix_by_key on prefix (key);
create index prefix_by_used on prefix (used);
