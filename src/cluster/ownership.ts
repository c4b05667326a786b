/**
 * Which worker owns a session. Every change of owner gives the session's row a new fence, and writers name the fence
 * they were given: a former owner's write matches no row, however late it comes.
 */
import type { Connection } from './database.ts'

export interface SessionKey {
  /** A worker's fingerprint. */
  readonly model: string
  /** The tenant's namespace. */
  readonly tenant: string
  readonly id: string
}

interface Owner {
  readonly owner: string
  readonly node: string
  readonly url: string
}

/** A session as its new owner gets it. */
interface Taken {
  readonly fence: number
  /** The last published record, in JSON. Null: never published. */
  readonly record: unknown
  /** The previous owner. Null: none, or this worker. */
  readonly former: string | null
}

interface TakeOptions {
  /** The worker that takes the session. */
  readonly worker: string
  /** Creates a missing session without a record. */
  readonly mayCreate: boolean
  /** Added to the record's version if the previous owner died. */
  readonly gap: number
}

const TAKE = `
  owner = $4, fence = s.fence + 1, former = coalesce(s.owner, s.former),
  record = case when s.record is null or s.owner is null or s.owner = $4 then s.record
    else jsonb_set(s.record, '{version}', to_jsonb((s.record->>'version')::bigint + $5::bigint)) end
`
/** For a row `s`: it is mine, nobody's, or its owner's lease has expired. */
const IS_FREE = `(s.owner is null or s.owner = $4 or not exists (
  select 1 from worker w where w.id = s.owner and w.expires > now()
))`
const RETURNING = 'returning fence, record, nullif(former, $4) as former'

/** Null: there is no such session, or another worker has it (see ownerOf). */
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

/** Releases a session that this worker owns by its row, though it holds no claim on it. */
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

/** The live worker that owns it; null: any worker may take it. */
export async function ownerOf(on: Connection, { model, tenant, id }: SessionKey): Promise<Owner | null> {
  const { rows } = await on.query<Owner>(
    `select s.owner, w.node, w.url from session s join worker w on w.id = s.owner
     where s.model = $1 and s.tenant = $2 and s.id = $3 and w.expires > now()`,
    [model, tenant, id],
  )
  return rows[0] ?? null
}
