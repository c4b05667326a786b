-- What is left of a key's requests and tokens a minute, as of a moment; below zero in debt. used: what was told last.
create table allowance (
  tenant text not null,
  kind text not null,
  capacity double precision not null,
  used double precision not null,
  level double precision not null,
  at timestamptz not null,
  primary key (tenant, kind)
);
