/** Moves of sessions between workers; the database remembers the latest. */
import type { Connection } from './database.ts'

interface Move {
  readonly model: string
  readonly id: string
  readonly fromWorker: string
  readonly toWorker: string
  /** From memory to memory, not through the storage. */
  readonly isDirect: boolean
  /** Time from the first request for the state until it was complete. */
  readonly ms: number
}

export interface PastMove extends Move {
  /** Milliseconds since 1970, by the database's clock. */
  readonly at: number
}

const MAX_KEPT = 1000

export async function noteMove(on: Connection, move: Move): Promise<void> {
  const { model, id, fromWorker, toWorker, isDirect, ms } = move
  await on.query(
    `insert into move (model, id, from_worker, to_worker, is_direct, ms)
     values ($1, $2, $3, $4, $5, $6)`,
    [model, id, fromWorker, toWorker, isDirect, ms],
  )
}

export async function forgetOldMoves(on: Connection): Promise<void> {
  await on.query('delete from move where n <= (select max(n) from move) - $1', [MAX_KEPT])
}

/** The count of all moves, and the latest ones, newest first. */
export async function movesOf(on: Connection, limit: number) {
  const { rows } = await on.query<PastMove & { readonly n: number }>(
    `select n, model, id, from_worker as "fromWorker", to_worker as "toWorker",
       is_direct as "isDirect", ms, (extract(epoch from at) * 1000)::float as at
     from move order by n desc limit $1`,
    [limit],
  )
  return { count: rows[0]?.n ?? 0, latest: rows.map(({ n, ...move }) => move) }
}
