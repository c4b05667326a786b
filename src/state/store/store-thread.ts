/** The store in two threads of this process (thread.ts). It owns them; if one dies, every call fails. */
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { LeaseView } from '../../cluster/lease-view.ts'
import { assert, SkeinError } from '../../errors.ts'
import { modelKeyOf } from '../model-key.ts'
import type { SharedStoreOptions } from '../shared/shared-store.ts'
import type { ModelIdentity, Snapshot } from '../snapshot.ts'
import {
  type Claim,
  type LeaseSight,
  type ListPage,
  nameKey,
  type PrefixStore,
  type SessionName,
  type StatePut,
  type Store,
  type StoreChange,
  type StoredSession,
  type Usage,
} from './store.ts'
import type {
  AskParams,
  AskResult,
  FromThread,
  SharedThreadOptions,
  ThreadAsk,
  ThreadOptions,
  ToThread,
} from './thread.ts'

export interface StoreOptions {
  /** Data folder of all models; each has its own folder in it. */
  readonly dataFolder: string
  readonly identity: ModelIdentity
  readonly isDurable: boolean
}

export async function openStore(options: StoreOptions): Promise<Store> {
  const folder = join(options.dataFolder, modelKeyOf(options.identity))
  const numReads = new Int32Array(new SharedArrayBuffer(4))
  const kind = 'sqlite'
  const shared = { ...options, kind, folder, numReads, isToldFirst: !options.isDurable } as const
  const writer = await StoreThread.start(shared)
  try {
    // A claim is worth nothing after a loss of power, so this one never waits for the disk.
    const { owner } = writer
    const calm = { ...shared, owner, isDurable: false }
    const reader = await StoreThread.start(calm)
    return new ThreadedStore(writer, reader, numReads)
  } catch (error) {
    await writer.end()
    throw error
  }
}

type ClusterStoreOptions = Omit<SharedStoreOptions, 'leaseWords' | 'now'>

/** Opens the store that the nodes of a cluster share, and joins them. One thread will do: its work is waiting. */
export async function openClusterStore(options: ClusterStoreOptions): Promise<Store> {
  const lease = new LeaseView()
  const thread = await StoreThread.start({ kind: 'shared', ...options, leaseWords: lease.words })
  return new ThreadedStore(thread, thread, new Int32Array(1), lease)
}

/** A megabyte: copying it takes a tenth of a millisecond, or several where the memory is new. */
const PART_FLOATS = 2 ** 18
/** Milliseconds per turn of the event loop for sending parts of a state. The results of a step wait for it. */
const SEND_MS = 0.5
/** Parts whose memory is kept for later ones. */
const SPARE_PARTS = 32

class ThreadedStore implements Store {
  readonly secret: Uint8Array
  readonly lease: LeaseSight | null
  readonly offer?: (put: StatePut) => Promise<void>
  readonly prefixes?: PrefixStore
  readonly #writer: StoreThread
  readonly #reader: StoreThread
  /** i32 [1]: the writer gives way to them. */
  readonly #numReads: Int32Array
  /** Commits, offers and prefixes. */
  #numSent = 0
  /** Sessions begun here without a claim, of which nothing was written. */
  readonly #unclaimed = new Map<string, SessionName>()

  /** Writer and reader may be the same. */
  constructor(writer: StoreThread, reader: StoreThread, numReads: Int32Array, lease: LeaseSight | null = null) {
    this.lease = lease
    if (lease !== null) {
      this.offer = (put) => this.#offer(put)
      this.prefixes = {
        find: (...prompt) => reader.ask('findPrefix', ...prompt),
        publish: async (prefix) => {
          const number = this.#nextNumber()
          await writer.ask('publishPrefix', number, await this.#send(number, prefix))
        },
        remove: (...prefix) => writer.ask('removePrefix', ...prefix),
      }
    }
    this.#numReads = numReads
    this.#writer = writer
    this.#reader = reader
    this.secret = writer.secret
  }

  async load(key: string, namespace: string): Promise<Snapshot> {
    Atomics.add(this.#numReads, 0, 1)
    try {
      return await this.#reader.ask('load', key, namespace)
    } finally {
      Atomics.sub(this.#numReads, 0, 1)
      Atomics.notify(this.#numReads, 0)
    }
  }

  async claim(name: SessionName, mayCreate: boolean): Promise<Claim> {
    const claim = await this.#reader.ask('claim', name, mayCreate)
    if (claim.isUnclaimed) this.#unclaimed.set(nameKey(name), name)
    return claim
  }

  find(name: SessionName): Promise<StoredSession | null> {
    return this.#reader.ask('find', name)
  }

  list(namespace: string, page: ListPage): Promise<readonly StoredSession[]> {
    return this.#reader.ask('list', namespace, page)
  }

  usage(namespace: string): Promise<Usage> {
    return this.#reader.ask('usage', namespace)
  }

  expire(): Promise<void> {
    return this.#writer.ask('expire')
  }

  /**
   * A large state is sent in parts, over several turns of the event loop: copying tens of megabytes at once would delay
   * the engine's steps. Parts of a commit that breaks off are dropped.
   */
  async commit(change: StoreChange): Promise<readonly SessionName[]> {
    const number = this.#nextNumber()
    const puts = []
    for (const put of change.puts) puts.push(await this.#send(number, put))
    const unclaimed = change.sessions.flatMap((name) => this.#unclaimed.get(nameKey(name)) ?? [])
    const lost = await this.#writer.ask('commit', { ...change, unclaimed, number, puts })
    for (const name of [...unclaimed, ...(change.releases ?? [])]) this.#unclaimed.delete(nameKey(name))
    return lost
  }

  async #offer(put: StatePut): Promise<void> {
    const number = this.#nextNumber()
    await this.#writer.ask('offer', number, await this.#send(number, put))
  }

  async #send<Put extends { readonly floats: readonly Float32Array[] }>(number: number, { floats, ...put }: Put) {
    let numParts = 0
    let began = performance.now()
    for (const array of floats) {
      for (let at = 0; at < array.length; at += PART_FLOATS) {
        if (performance.now() - began > SEND_MS) {
          await setImmediate()
          began = performance.now()
        }
        this.#writer.sendPart(number, array.subarray(at, at + PART_FLOATS))
        numParts++
      }
    }
    return { ...put, numParts }
  }

  #nextNumber(): number {
    this.#numSent++
    return this.#numSent
  }

  /** The reader closes first: the other connection gives up the claims of both. */
  async close(): Promise<void> {
    await this.#reader.end()
    if (this.#writer !== this.#reader) await this.#writer.end()
  }
}

class StoreThread {
  readonly secret: Uint8Array
  /** Owner of the claims that are made through it. */
  readonly owner: string
  readonly #worker: Worker
  readonly #pending = new Map<number, { resolve(result: unknown): void; reject(error: SkeinError): void }>()
  readonly #spare: ArrayBuffer[] = []
  #numAsked = 0
  #failure: SkeinError | null = null

  private constructor(worker: Worker, { secret, owner }: FromThread & { type: 'opened' }) {
    this.#worker = worker
    this.secret = secret
    this.owner = owner
    worker.on('message', (message: FromThread) => this.#receive(message))
    worker.on('error', (error) => this.#fail(error.message))
    worker.on('exit', (code) => this.#fail(`exit code ${code}`))
  }

  static start(workerData: ThreadOptions | SharedThreadOptions): Promise<StoreThread> {
    const worker = new Worker(new URL('./thread.js', import.meta.url), { workerData })
    return new Promise((resolve, reject) => {
      const lost = (reason: string) => reject(threadEnded(reason))
      worker.on('error', (error) => lost(error.message))
      worker.on('exit', (code) => lost(`exit code ${code}`))
      worker.once('message', (message: FromThread) => {
        if (message.type === 'opened') {
          resolve(new StoreThread(worker, message))
        } else {
          assert(message.type === 'failed', 'the store answered before it was opened')
          reject(SkeinError.fromShape(message.error))
        }
      })
    })
  }

  /**
   * Copies a part of a state, into memory that the thread gave back if there is any: new pages take longer than the
   * copy.
   */
  sendPart(number: number, floats: Float32Array): void {
    if (this.#failure !== null) throw this.#failure
    const memory = this.#spare.pop() ?? new ArrayBuffer(4 * PART_FLOATS)
    new Float32Array(memory).set(floats)
    const message: ToThread = { type: 'part', number, memory, length: floats.length }
    this.#worker.postMessage(message, [memory])
  }

  async ask<M extends ThreadAsk>(method: M, ...params: AskParams<M>): Promise<AskResult<M>> {
    if (this.#failure !== null) throw this.#failure
    this.#numAsked++
    const id = this.#numAsked
    const result = new Promise<unknown>((resolve, reject) => {
      this.#pending.set(id, { resolve, reject })
    })
    // A member of the union for each M, which a generic M hides.
    this.#worker.postMessage({ type: 'ask', id, method, params } as ToThread)
    // The thread answers a method with its result of the same table.
    return (await result) as AskResult<M>
  }

  /** After what was asked before. */
  async end(): Promise<void> {
    if (this.#failure === null) await this.ask('close')
    await this.#worker.terminate()
  }

  #receive(message: FromThread): void {
    if (message.type === 'spare') {
      if (this.#spare.length < SPARE_PARTS) this.#spare.push(message.memory)
      return
    }
    if (message.type === 'opened' || message.id === null) return
    const pending = this.#pending.get(message.id)
    this.#pending.delete(message.id)
    if (message.type === 'done') pending?.resolve(message.result)
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
