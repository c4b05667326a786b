-- Files that clients sent, batches over them, and results until they are files. created, expires: Unix seconds.
-- parts: blobs, in order, and their bytes.
create table batch_file (
  id text primary key,
  tenant text not null,
  filename text not null,
  purpose text not null,
  bytes bigint not null,
  created bigint not null,
  expires bigint,
  parts jsonb not null
);
create index batch_file_by_tenant on batch_file (tenant, created);

-- owner: who runs it until lease is over, by the database's clock.
create table batch (
  id text primary key,
  tenant text not null,
  status text not null,
  created bigint not null,
  data text not null,
  owner text,
  lease timestamptz not null default '-infinity'
);
create index batch_by_tenant on batch (tenant, created);
create index batch_by_status on batch (status, created);

create table batch_line (
  batch text not null,
  line integer not null,
  failed boolean not null,
  text text not null,
  primary key (batch, line)
);
