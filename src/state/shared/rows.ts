/** The rows of a shared store: SQL and no rules. Owners of sessions are cluster/ownership.ts. */
import type { Connection } from '../../cluster/database.ts'
import {
  expiresAt,
  type ListPage,
  type SessionName,
  type SessionRecord,
  type StoredSession,
  type Usage,
} from '../store/store.ts'

/** A session as it is to be; what names another fence than the row has changes nothing. */
export interface Published extends SessionName {
  readonly fence: number
  /** Absent: it stays. Null: the session goes. */
  readonly record?: SessionRecord | null
  /** Others may take it from then on. */
  readonly isReleased: boolean
}

/** Where a state is: one of the two. */
export interface StoredState {
  readonly key: string
  readonly inline: Uint8Array | null
  readonly blob: string | null
}

export interface Outcome {
  /** Sessions whose fence was right. */
  readonly held: readonly SessionName[]
  /** States that were not there before. */
  readonly stored: readonly string[]
  /** States that those sessions no longer use. */
  readonly dropped: readonly string[]
}

const PUBLISH = `
  with given as (
    select * from jsonb_to_recordset($2::jsonb) as g(
      tenant text, id text, fence bigint, "hasRecord" boolean, record jsonb, "isReleased" boolean, expires bigint
    )
  ), stored as (
    insert into state (key, inline, blob)
    select * from unnest($3::text[], $4::bytea[], $5::text[])
    on conflict (key) do nothing returning key
  ), put as (
    update session s set
      owner = case when g."isReleased" then null else s.owner end,
      former = case when g."isReleased" then s.owner else s.former end,
      record = case when g."hasRecord" then g.record else s.record end,
      version = case when g."hasRecord" then s.version + 1 else s.version end,
      head = case when g."hasRecord" then (g.record->>'head')::integer else s.head end,
      updated = case when g."hasRecord" then (g.record->>'updatedAt')::bigint else s.updated end,
      expires = case when g."hasRecord" then g.expires else s.expires end
    from given g
    where s.model = $1 and s.tenant = g.tenant and s.id = g.id and s.fence = g.fence
      and not (g."hasRecord" and g.record is null)
      and (g."hasRecord" or s.record is not null)
    returning s.tenant, s.id, g."hasRecord"
  ), gone as (
    delete from session s using given g
    where s.model = $1 and s.tenant = g.tenant and s.id = g.id and s.fence = g.fence
      and g.record is null and (g."hasRecord" or (g."isReleased" and s.record is null))
    returning s.tenant, s.id, true as "hasRecord"
  ), held as (select * from put union all select * from gone),
  named as (
    select g.tenant, g.id, t->>'key' as key, max((t->>'bytes')::bigint) as bytes
    from given g join put using (tenant, id), jsonb_array_elements(g.record->'turns') t
    where g."hasRecord" group by 1, 2, 3
  ), used as (
    insert into session_state (model, tenant, id, key, bytes)
    select $1, tenant, id, key, bytes from named on conflict do nothing
  ), dropped as (
    delete from session_state u using held h
    where u.model = $1 and u.tenant = h.tenant and u.id = h.id and h."hasRecord"
      and not exists (select 1 from named n where n.tenant = u.tenant and n.id = u.id and n.key = u.key)
    returning u.key
  )
  select 'held' as what, tenant, id from held
  union all select 'stored', null, key from stored
  union all select 'dropped', null, key from dropped
`

interface OutcomeRow {
  readonly what: 'held' | 'stored' | 'dropped'
  readonly tenant: string
  readonly id: string
}

/** All of it at once, in one statement: a process that stops in the middle of it holds no row. */
export async function publish(
  on: Connection,
  model: string,
  sessions: readonly Published[],
  states: readonly StoredState[],
): Promise<Outcome> {
  const given = sessions.map(({ namespace, id, fence, record, isReleased }) => {
    const expires = record == null ? null : expiresAt(record)
    const hasRecord = record !== undefined
    return { tenant: namespace, id, fence, hasRecord, record: record ?? null, isReleased, expires }
  })
  const { rows } = await on.query<OutcomeRow>(PUBLISH, [
    model,
    JSON.stringify(given),
    states.map(({ key }) => key),
    states.map(({ inline }) => inline && Buffer.from(inline)),
    states.map(({ blob }) => blob),
  ])
  const of = (what: OutcomeRow['what']) => rows.filter((row) => row.what === what)
  return {
    held: of('held').map(({ tenant, id }) => ({ namespace: tenant, id })),
    stored: of('stored').map(({ id }) => id),
    dropped: of('dropped').map(({ id }) => id),
  }
}

const UNUSED = `not exists (select 1 from session_state u where u.key = t.key)
  and not exists (select 1 from prefix p where p.key = t.key)`

/** Removes those of the states that no session and no prefix uses. Returns the blobs that held them. */
export async function removeUnused(on: Connection, keys: readonly string[]): Promise<string[]> {
  if (keys.length === 0) return []
  const { rows } = await on.query<{ blob: string | null }>(
    `delete from state t where key = any($1)
       and ${UNUSED} returning blob`,
    [keys],
  )
  return rows.flatMap(({ blob }) => blob ?? [])
}

export async function stateOf(on: Connection, key: string): Promise<StoredState | null> {
  const { rows } = await on.query<StoredState>('select key, inline, blob from state where key = $1', [key])
  return rows[0] ?? null
}

export async function exists(on: Connection, model: string, { namespace, id }: SessionName): Promise<boolean> {
  const sql = 'select 1 from session where model = $1 and tenant = $2 and id = $3'
  return (await on.query(sql, [model, namespace, id])).count > 0
}

interface SessionRow {
  readonly tenant: string
  readonly id: string
  readonly record: SessionRecord
}

const storedOf = ({ tenant, id, record }: SessionRow): StoredSession => ({ namespace: tenant, id, record })

export async function find(
  on: Connection,
  model: string,
  { namespace, id }: SessionName,
  now: number,
): Promise<StoredSession | null> {
  const { rows } = await on.query<SessionRow>(
    `select tenant, id, record from session where model = $1 and tenant = $2 and id = $3
       and record is not null and (expires is null or expires > $4)`,
    [model, namespace, id, now],
  )
  return rows[0] === undefined ? null : storedOf(rows[0])
}

/** Whose sessions, and who asks: those it has itself are not among the answer. */
export interface Elsewhere {
  readonly model: string
  readonly namespace: string
  readonly worker: string
  readonly now: number
}

const ELSEWHERE = `s.model = $1 and s.tenant = $2 and s.owner is distinct from $3
  and s.record is not null and (s.expires is null or s.expires > $4)`

export async function list(
  on: Connection,
  { model, namespace, worker, now }: Elsewhere,
  { limit, after }: ListPage,
): Promise<StoredSession[]> {
  const { updatedAt = Number.MAX_SAFE_INTEGER, id = '' } = after ?? {}
  const { rows } = await on.query<SessionRow>(
    `select tenant, id, record from session s where ${ELSEWHERE}
       and (updated < $5 or (updated = $5 and id collate "C" > $6))
     order by updated desc, id collate "C" limit $7`,
    [model, namespace, worker, now, updatedAt, id, limit],
  )
  return rows.map(storedOf)
}

/**
 * A state that several sessions use counts once. It is asked at each claim. With `is true` the sessions are looked up in a hash, whatever
 * PostgreSQL believes of the tables: without statistics (after an upgrade, in a table that has just grown) it expects one
 * session and one state, and a join of the two compared each with each, 10 s for 10,000 sessions.
 */
export async function usage(on: Connection, { model, namespace, worker, now }: Elsewhere): Promise<Usage> {
  const { rows } = await on.query<Usage>(
    `with theirs as materialized (select id from session s where ${ELSEWHERE}), each as (
       select max(bytes) as bytes from session_state u
       where u.model = $1 and u.tenant = $2 and (u.id in (select id from theirs)) is true group by key
     )
     select (select count(*) from theirs) as sessions, (select coalesce(sum(bytes), 0)::bigint from each) as bytes`,
    [model, namespace, worker, now],
  )
  return rows[0]!
}

/** Sessions of all models whose time is over and that no live worker has. Returns the states they used. */
export async function expire(on: Connection, now: number): Promise<string[]> {
  const { rows } = await on.query<{ key: string }>(
    `with gone as (
       delete from session s where expires <= $1
         and not exists (select 1 from worker w where w.id = s.owner and w.expires > now())
       returning model, tenant, id
     ), dropped as (
       delete from session_state u using gone g
       where u.model = g.model and u.tenant = g.tenant and u.id = g.id returning u.key
     ) select distinct key from dropped`,
    [now],
  )
  return rows.map(({ key }) => key)
}

/** States that nothing has used for a while: what a crash between two statements has left. Returns their blobs. */
export async function removeStale(on: Connection, ageMs: number): Promise<string[]> {
  const { rows } = await on.query<{ blob: string | null }>(
    `delete from state t where created < now() - $1 * interval '1 millisecond'
       and ${UNUSED} returning blob`,
    [ageMs],
  )
  return rows.flatMap(({ blob }) => blob ?? [])
}

/** Those of the blobs that hold states or files of batches. */
export async function wanted(on: Connection, names: readonly string[]): Promise<Set<string>> {
  const { rows } = await on.query<{ blob: string }>(
    `select blob from state where blob = any($1)
     union all select part->>'blob' from batch_file, jsonb_array_elements(parts) part
       where part->>'blob' = any($1)`,
    [names],
  )
  return new Set(rows.map(({ blob }) => blob))
}
