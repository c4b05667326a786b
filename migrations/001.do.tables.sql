-- The tables of a cluster. Times are the database's own clock unless a column says otherwise.

-- One row: 32 random bytes that all nodes share. Namespaces of tenants and seals of exports are keyed with it.
create table cluster (
  one boolean primary key default true check (one),
  secret bytea not null
);

-- Engine processes that are there. One whose time is over is not, whatever it believes itself.
create table worker (
  id text primary key,
  node text not null,
  url text not null,
  model text not null,
  fingerprint text not null,
  slots integer not null,
  in_flight integer not null default 0,
  expires timestamptz not null,
  info jsonb not null default '{}'
);
create index worker_by_expires on worker (expires);

-- Sessions of all models and tenants. A row without a record is a session that somebody is about to make.
-- fence: grows with every change of owner; who writes names it. updated, expires: milliseconds since 1970, as in the record.
create table session (
  model text not null,
  tenant text not null,
  id text not null,
  owner text,
  fence bigint not null default 1,
  version bigint not null default 0,
  head integer not null default 0,
  record jsonb,
  updated bigint not null default 0,
  expires bigint,
  primary key (model, tenant, id)
);
create index session_by_owner on session (owner) where owner is not null;
create index session_by_expires on session (expires) where expires is not null;
create index session_by_updated on session (model, tenant, updated desc, id);

-- Recurrent states: in the row, or under this name in the storage of blobs.
create table state (
  key text primary key,
  inline bytea,
  blob text,
  created timestamptz not null default now()
);
create index state_by_blob on state (blob) where blob is not null;

-- Which sessions need which states. A state goes when no row names it.
create table session_state (
  model text not null,
  tenant text not null,
  id text not null,
  key text not null,
  bytes bigint not null,
  primary key (model, tenant, id, key)
);
create index session_state_by_key on session_state (key);
