/**
 * Beginnings of prompts that workers of a model share: found by a hash of their tokens within one tenant, and proved by the
 * tokens themselves. They can all be computed again, so nobody waits for one that cannot be had, few are kept of a tenant,
 * and none that nobody has begun with for an hour.
 */
import { createHash } from 'node:crypto'
import type { Connection } from '../../cluster/database.ts'
import { newKey } from '../kept-state.ts'
import { MIN_PREFIX_TOKENS } from '../prefix-cache.ts'
import type { Snapshot } from '../snapshot.ts'
import type { PrefixStore, SharedPrefix } from '../store/store.ts'
import type { StoredStates } from './stored-states.ts'

/** Half a gigabyte of a tenant's, with a model of 7B. The least recently used go. */
const MAX_OF_TENANT = 16
const MAX_OF_MODEL = 256

interface Row {
  readonly hash: string
  readonly tokens: number
  readonly key: string
}

export class SharedPrefixes implements PrefixStore {
  readonly #database: Connection
  readonly #model: string
  readonly #states: StoredStates

  constructor(database: Connection, model: string, states: StoredStates) {
    this.#database = database
    this.#model = model
    this.#states = states
  }

  async find(namespace: string, prompt: Int32Array, minTokens: number): Promise<Snapshot | null> {
    const { rows } = await this.#database.query<Row>(
      `select hash, tokens, key from prefix where model = $1 and tenant = $2 and head = $3
         and tokens between $4 and $5 order by tokens desc`,
      [this.#model, namespace, headOf(prompt), minTokens, prompt.length - 1],
    )
    const found = rows.find(({ hash, tokens }) => hash === hashOf(prompt.subarray(0, tokens)))
    if (found === undefined) return null
    const snapshot = await this.#states.get(found.key, namespace)
    const { tokens, tail } = snapshot
    const isIt = tail.length === 0 && tokens.every((token, i) => token === prompt[i])
    if (!isIt || tokens.length !== found.tokens) return null
    await this.#touch(namespace, found.hash)
    return snapshot
  }

  async publish({ namespace, tokens, floats }: SharedPrefix): Promise<void> {
    const hash = hashOf(tokens)
    if (await this.#touch(namespace, hash)) return
    const key = newKey()
    const text = { tokens, tail: new Int32Array(0) }
    const state = await this.#states.put({ key, ...text, floats, namespace, isForeign: false })
    const { count } = await this.#database.query(
      `with named as (
         insert into prefix (model, tenant, hash, head, tokens, key) values ($1, $2, $3, $4, $5, $6)
         on conflict do nothing returning key
       ) insert into state (key, inline, blob) select key, $7::bytea, $8::text from named`,
      [
        ...[this.#model, namespace, hash, headOf(tokens), tokens.length, key],
        ...[state.inline && Buffer.from(state.inline), state.blob],
      ],
    )
    // Somebody was quicker.
    if (count === 0) await this.#states.removeUnused([], state.blob === null ? [] : [state.blob])
    else await this.#removeOldest(namespace)
  }

  async remove(namespace: string, tokens: Int32Array): Promise<void> {
    const sql = 'delete from prefix where model = $1 and tenant = $2 and hash = $3 returning key'
    await this.#drop(sql, [this.#model, namespace, hashOf(tokens)])
  }

  /** False: it is not there. */
  async #touch(namespace: string, hash: string): Promise<boolean> {
    const sql = 'update prefix set used = now() where model = $1 and tenant = $2 and hash = $3'
    return (await this.#database.query(sql, [this.#model, namespace, hash])).count > 0
  }

  async #removeOldest(namespace: string): Promise<void> {
    const sql = `delete from prefix where model = $1 and (
        key in (select key from prefix where model = $1 and tenant = $2 order by used desc offset ${MAX_OF_TENANT})
        or key in (select key from prefix where model = $1 order by used desc offset ${MAX_OF_MODEL})
      ) returning key`
    await this.#drop(sql, [this.#model, namespace])
  }

  async #drop(sql: string, values: readonly (string | number)[]): Promise<void> {
    const { rows } = await this.#database.query<{ key: string }>(sql, values)
    await this.#states.removeUnused(rows.map(({ key }) => key))
  }
}

/** Prefixes of all models that nobody has begun with lately. Returns their blobs. */
export async function removeIdle(on: Connection): Promise<string[]> {
  const { rows } = await on.query<{ blob: string | null }>(
    `with gone as (
       delete from prefix where used < now() - interval '1 hour' returning key
     ) delete from state t using gone g where t.key = g.key returning t.blob`,
  )
  return rows.flatMap(({ blob }) => blob ?? [])
}

function hashOf(tokens: Int32Array): string {
  return createHash('sha256').update(tokens).digest('hex')
}

function headOf(tokens: Int32Array): string {
  return hashOf(tokens.subarray(0, MIN_PREFIX_TOKENS))
}
