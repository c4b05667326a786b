/** The store as a thread of this process: see thread.ts. It owns the thread; if that dies, everything asked fails. */
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { assert, SkeinError } from '../../errors.ts'
import type { ModelIdentity, Snapshot } from '../snapshot.ts'
import type { Store, StoreChange, StoredSession } from './store.ts'
import type { ArrayLengths, FromThread, ThreadOptions, ToThread } from './thread.ts'

export interface StoreOptions {
  /** Of all models; each has a folder of its own in it. */
  readonly dataFolder: string
  readonly identity: ModelIdentity
  readonly isDurable: boolean
}

/** Opens or makes the store of a model. Throws conflict when another process has it open. */
export function openStore(options: StoreOptions): Promise<Store> {
  const folder = join(options.dataFolder, folderOf(options.identity))
  const workerData: ThreadOptions = { ...options, folder }
  const worker = new Worker(new URL('./thread.js', import.meta.url), { workerData })
  return new Promise((resolve, reject) => {
    const lost = (reason: string) => reject(threadEnded(reason))
    worker.on('error', (error) => lost(error.message))
    worker.on('exit', (code) => lost(`exit code ${code}`))
    worker.once('message', (message: FromThread) => {
      if (message.type === 'opened') {
        resolve(new StoreThread(worker, message.secret, message.sessions))
      } else {
        assert(message.type === 'failed', 'the store answered before it was opened')
        reject(SkeinError.fromShape(message.error))
      }
    })
  })
}

/** A store holds the states of one model: one that fits another model's would be wrong and look right. */
function folderOf(identity: ModelIdentity): string {
  const { architecture, layers, channels, heads, headSize, vocabulary, weights } = identity
  const parts = [architecture, layers, channels, heads, headSize, vocabulary, weights]
  const hash = createHash('sha256').update(JSON.stringify(parts)).digest('hex')
  return `${architecture}-${hash.slice(0, 16)}`
}

interface Pending {
  resolve(snapshot: Snapshot | null): void
  reject(error: SkeinError): void
}

type Ask =
  | { readonly type: 'load'; readonly key: string; readonly namespace: string }
  | { readonly type: 'commit'; readonly change: StoreChange; readonly arrays: ArrayLengths | null }
  | { readonly type: 'close' }

/** A megabyte: a millisecond or so. */
const PART_FLOATS = 2 ** 18

class StoreThread implements Store {
  readonly secret: Uint8Array
  readonly sessions: readonly StoredSession[]
  readonly #worker: Worker
  readonly #pending = new Map<number, Pending>()
  #numAsked = 0
  #failure: SkeinError | null = null

  constructor(worker: Worker, secret: Uint8Array, sessions: readonly StoredSession[]) {
    this.#worker = worker
    this.secret = secret
    this.sessions = sessions
    worker.on('message', (message: FromThread) => this.#receive(message))
    worker.on('error', (error) => this.#fail(error.message))
    worker.on('exit', (code) => this.#fail(`exit code ${code}`))
  }

  async load(key: string, namespace: string): Promise<Snapshot> {
    const snapshot = await this.#ask({ type: 'load', key, namespace })
    assert(snapshot !== null, 'the store loaded nothing')
    return snapshot
  }

  /**
   * A large state goes over in parts, one a turn of the event loop: the engine steps in between, and a copy of tens of
   * megabytes at once would hold it up.
   */
  async commit(change: StoreChange): Promise<void> {
    const { put } = change
    if (put === null) {
      await this.#ask({ type: 'commit', change, arrays: null })
      return
    }
    const { shift, wkv } = put.snapshot.state
    for (const [name, array] of Object.entries({ shift, wkv })) {
      for (let at = 0; at < array.length; at += PART_FLOATS) {
        if (this.#failure !== null) throw this.#failure
        const part = array.slice(at, at + PART_FLOATS)
        const message: ToThread = { type: 'part', name: name as 'shift' | 'wkv', at, part }
        this.#worker.postMessage(message, [part.buffer as ArrayBuffer]) // slice makes a plain one
        await setImmediate()
      }
    }
    const empty = { shift: new Float32Array(0), wkv: new Float32Array(0) }
    const light = { ...put, snapshot: { ...put.snapshot, state: empty } }
    const arrays = { shift: shift.length, wkv: wkv.length }
    await this.#ask({ type: 'commit', change: { ...change, put: light }, arrays })
  }

  async close(): Promise<void> {
    if (this.#failure === null) await this.#ask({ type: 'close' })
    await this.#worker.terminate()
  }

  #ask(what: Ask): Promise<Snapshot | null> {
    if (this.#failure !== null) return Promise.reject(this.#failure)
    this.#numAsked++
    const id = this.#numAsked
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject })
      const message: ToThread = { ...what, id }
      this.#worker.postMessage(message)
    })
  }

  #receive(message: FromThread): void {
    if (message.type === 'opened' || message.id === null) return
    const pending = this.#pending.get(message.id)
    this.#pending.delete(message.id)
    if (message.type === 'done') pending?.resolve(message.snapshot)
    else pending?.reject(SkeinError.fromShape(message.error))
  }

  #fail(reason: string): void {
    this.#failure ??= threadEnded(reason)
    for (const { reject } of this.#pending.values()) reject(this.#failure)
    this.#pending.clear()
  }
}

function threadEnded(reason: string): SkeinError {
  return new SkeinError('state_unavailable', `the store's thread ended (${reason})`)
}
