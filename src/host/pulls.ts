/**
 * Models fetched from the hub while the server runs, one at a time: each by a record that says how far it is. What a name
 * means, and that a file is whole, is the hub's business; a pull that ended early goes on where it was when asked for again.
 */
import { randomBytes } from 'node:crypto'
import { basename } from 'node:path'
import { SkeinError } from '../errors.ts'
import type { PullRecord } from '../gateway/contract.ts'
import { openHub } from '../hub/hub.ts'
import { parseModelName } from '../hub/model-names.ts'
import { type PullOptions, pullModel, pullVocabulary } from '../hub/pull.ts'
import { vocabularyPath } from './load.ts'

/** Ended ones are listed for a while. */
const MOST_LISTED = 20

export class Pulls {
  readonly #environment: Readonly<Record<string, string | undefined>>
  #records: PullRecord[] = []

  constructor(environment: Readonly<Record<string, string | undefined>> = process.env) {
    this.#environment = environment
  }

  /** Latest first. */
  list(): readonly PullRecord[] {
    return this.#records
  }

  /** Answers at once: the record says how far it is. */
  start(name: string): PullRecord {
    const running = this.#records.find(({ state }) => state === 'running')
    if (running !== undefined) {
      const message = `name: ${running.name} is being pulled; one model is fetched at a time`
      throw new SkeinError('conflict', message, { param: 'name' })
    }
    checkName(name)
    const record: PullRecord = {
      id: `pull-${randomBytes(5).toString('hex')}`,
      name,
      state: 'running',
      ...{ file: null, done_bytes: 0, total_bytes: 0, reason: null },
      ...{ started_at: Date.now() / 1000, ended_at: null },
    }
    this.#records = [record, ...this.#records].slice(0, MOST_LISTED)
    void this.#run(record)
    return record
  }

  async #run({ id, name }: PullRecord): Promise<void> {
    const change = (fields: Partial<PullRecord>) => {
      this.#records = this.#records.map((one) => (one.id === id ? { ...one, ...fields } : one))
    }
    const end = (fields: Partial<PullRecord>) =>
      change({ file: null, ended_at: Date.now() / 1000, ...fields })
    try {
      const options: PullOptions = {
        hub: openHub(this.#environment),
        isOffline: false,
        environment: this.#environment,
        onFile: (file) => (done_bytes, total_bytes) =>
          change({ file: basename(file), done_bytes, total_bytes }),
      }
      const { path } = await pullModel(name, options)
      if (!hasVocabulary(path)) await pullVocabulary(options)
      end({ state: 'done' })
    } catch (thrown) {
      end({ state: 'failed', reason: SkeinError.from(thrown).message })
    }
  }
}

function checkName(name: string): void {
  try {
    parseModelName(name)
  } catch (thrown) {
    const { code, message } = SkeinError.from(thrown)
    throw new SkeinError(code, `name: ${message}`, { param: 'name', cause: thrown })
  }
}

/** In itself, beside it, or in the cache from an earlier time. */
function hasVocabulary(model: string): boolean {
  try {
    vocabularyPath({ model })
    return true
  } catch {
    return false
  }
}
