/** The named keys of a cluster, in its database: a change by one server reaches all within seconds. */
import type { Database } from '../../cluster/database.ts'
import { SkeinError } from '../../errors.ts'
import { KeyIndex, type NamedKeys } from './key-index.ts'
import { formatKeyList, type KeyRecord, parseKeyList } from './keys.ts'

const CHANNEL = 'skein_keys'
const CHECK_EVERY_MS = 2000

export class SharedKeyRing extends KeyIndex implements NamedKeys {
  readonly #database: Database
  readonly #onProblem: (error: SkeinError) => void
  #version = 0
  #timer: NodeJS.Timeout | null = null
  #stopListening: (() => void) | null = null

  private constructor(database: Database, onProblem: (error: SkeinError) => void) {
    super()
    this.#database = database
    this.#onProblem = onProblem
  }

  /** Throws if the list cannot be read: a server must not start open because of that. */
  static async open(database: Database, onProblem: (error: SkeinError) => void = () => {}): Promise<SharedKeyRing> {
    const ring = new SharedKeyRing(database, onProblem)
    await ring.#read()
    return ring
  }

  /** While the database is unreachable, the keys stay as they are. */
  follow(): void {
    if (this.#timer !== null) return
    this.#timer = setInterval(() => void this.refresh(), CHECK_EVERY_MS).unref()
    this.#stopListening = this.#database.listen(CHANNEL, () => void this.refresh())
  }

  async refresh(): Promise<void> {
    try {
      await this.#read()
    } catch (error) {
      this.#onProblem(SkeinError.from(error))
    }
  }

  async change<T extends { readonly keys: readonly KeyRecord[] }>(
    change: (keys: readonly KeyRecord[]) => T,
  ): Promise<T> {
    const changed = await this.#database.transaction(async (connection) => {
      const empty = formatKeyList([])
      await connection.query('insert into key_list (body) values ($1) on conflict do nothing', [empty])
      const { rows } = await connection.query<{ body: string }>('select body from key_list for update')
      const result = change(parseKeyList(rows[0]?.body ?? empty))
      await connection.query('update key_list set body = $1, version = version + 1', [formatKeyList(result.keys)])
      return result
    })
    await this.#database.query('select pg_notify($1, $2)', [CHANNEL, ''])
    await this.refresh()
    return changed
  }

  close(): void {
    if (this.#timer !== null) clearInterval(this.#timer)
    this.#stopListening?.()
  }

  async #read(): Promise<void> {
    const { rows } = await this.#database.query<{ body: string | null; version: number }>(
      'select case when version > $1 then body end as body, version from key_list',
      [this.#version],
    )
    const [row] = rows
    if (row === undefined || row.body === null) return
    this.replace(parseKeyList(row.body))
    this.#version = row.version
  }
}
