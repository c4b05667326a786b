/**
 * Which worker a session belongs to. Every change of owner gives the session's row a new fence, and who writes the row
 * names the fence it was given: what a former owner writes touches no row, however late it comes.
 */
import type { Connection } from './database.ts'

/** A session among those of all models and tenants. */
export interface SessionKey {
  /** A worker's fingerprint. */
  readonly model: string
  /** The tenant's namespace. */
  readonly tenant: string
  readonly id: string
}

export interface Owner {
  readonly owner: string
  readonly node: string
  readonly url: string
}

/** A session as its new owner finds it. */
export interface Taken {
  readonly fence: number
  /** Publications of its record so far. */
  readonly version: number
  /** As it was published last, in JSON. Null: never yet. */
  readonly record: unknown
  /** The worker that had it before. Null: none, or this one. */
  readonly former: string | null
}

interface TakeOptions {
  /** Of the worker that takes it. */
  readonly worker: string
  /** A session that does not exist becomes one without a record. */
  readonly mayCreate: boolean
  /** Added to the record's own version when its owner died. */
  readonly gap: number
}

const TAKE = `
  owner = $4, fence = s.fence + 1, former = coalesce(s.owner, s.former),
  record = case when s.record is null or s.owner is null or s.owner = $4 then s.record
    else jsonb_set(s.record, '{version}', to_jsonb((s.record->>'version')::bigint + $5::bigint)) end
`
/** Of a row `s`: it is mine, nobody's, or its owner's lease is over. */
const IS_FREE = `(s.owner is null or s.owner = $4 or not exists (
  select 1 from worker w where w.id = s.owner and w.expires > now()
))`
const RETURNING = 'returning fence, version, record, nullif(former, $4) as former'

/** Null: there is no such session, or another has it; see ownerOf. */
export async function take(
  on: Connection,
  { model, tenant, id }: SessionKey,
  { worker, mayCreate, gap }: TakeOptions,
): Promise<Taken | null> {
  const sql = mayCreate
    ? `insert into session as s (model, tenant, id, owner) values ($1, $2, $3, $4)
       on conflict (model, tenant, id) do update set ${TAKE} where ${IS_FREE} ${RETURNING}`
    : `update session s set ${TAKE}
       where model = $1 and tenant = $2 and id = $3 and ${IS_FREE} ${RETURNING}`
  const { rows } = await on.query<Taken>(sql, [model, tenant, id, worker, gap])
  return rows[0] ?? null
}

/** Lets a session go that this worker has by its row alone, and not by any claim that it knows of. */
export async function letGo(on: Connection, { model, tenant, id }: SessionKey, worker: string): Promise<void> {
  await on.query(
    `with gone as (
       delete from session
       where model = $1 and tenant = $2 and id = $3 and owner = $4 and record is null
     ) update session set owner = null, former = owner
       where model = $1 and tenant = $2 and id = $3 and owner = $4 and record is not null`,
    [model, tenant, id, worker],
  )
}

/** The live worker that has it; null: any may take it. */
export async function ownerOf(on: Connection, { model, tenant, id }: SessionKey): Promise<Owner | null> {
  const { rows } = await on.query<Owner>(
    `select s.owner, w.node, w.url from session s join worker w on w.id = s.owner
     where s.model = $1 and s.tenant = $2 and s.id = $3 and w.expires > now()`,
    [model, tenant, id],
  )
  return rows[0] ?? null
}
