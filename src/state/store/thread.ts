/**
 * Entry of a store's threads: one connection to the database each, asked by messages, answering in their order. SQLite
 * and large files would hold up the engine's steps; here they hold up only one another. There is one thread for what is
 * written, and one for what requests wait for, so that these do not wait for a write of tens of megabytes.
 */

import { parentPort, workerData } from 'node:worker_threads'
import { assert, type ErrorShape, SkeinError } from '../../errors.ts'
import type { SharedStoreOptions } from '../shared/shared-store.ts'
import type { Snapshot } from '../snapshot.ts'
import { type DatabaseOptions, StoreDatabase } from './database.ts'
import { filesWith } from './files.ts'
import { openSecret } from './secret.ts'
import type { Claim, ClaimAsk, PrefixStore, SharedPrefix, StatePut, Store, StoreChange } from './store.ts'

/** Options of a thread that runs a shared store. */
export interface SharedThreadOptions extends Omit<SharedStoreOptions, 'now'> {
  readonly kind: 'shared'
}

export interface ThreadOptions extends Omit<DatabaseOptions, 'files' | 'now'> {
  readonly kind: 'sqlite'
  /** Where the secret is. */
  readonly dataFolder: string
  /** i32 [1], shared by the threads of a store: the number of reads that requests wait for. */
  readonly numReads: Int32Array
}

/** A state whose numbers came before it, in so many parts. */
type LightPut = Omit<StatePut, 'floats'> & { readonly numParts: number }

/** A change whose states were sent before it, in parts with its number. */
interface LightChange extends Omit<StoreChange, 'puts'> {
  readonly number: number
  readonly puts: readonly LightPut[]
}

type Answer<T> = T | Promise<T>

/** Calls that a thread hands to its store as they come. */
const PASSED = ['load', 'claim', 'find', 'list', 'usage', 'expire'] as const
type Passed = (typeof PASSED)[number]

/** A store as its thread uses it: what a Store promises may be there at once. */
type OpenStore = Pick<Store, 'prefixes'> & { readonly owner: string; offer?(put: StatePut): void } & {
  [M in Passed | 'commit' | 'close']: (...given: Parameters<Store[M]>) => Answer<Awaited<ReturnType<Store[M]>>>
}

/** The calls to a thread. */
type Answers = Pick<OpenStore, Passed | 'close'> & {
  commit(change: LightChange): ReturnType<OpenStore['commit']>
  offer(number: number, put: LightPut): Answer<void>
  findPrefix(...prompt: Parameters<PrefixStore['find']>): Answer<Snapshot | null>
  publishPrefix(number: number, prefix: Omit<SharedPrefix, 'floats'> & { readonly numParts: number }): Answer<void>
  removePrefix(...prefix: Parameters<PrefixStore['remove']>): Answer<void>
}

export type ThreadAsk = keyof Answers
export type AskParams<M extends ThreadAsk> = Parameters<Answers[M]>
export type AskResult<M extends ThreadAsk> = Awaited<ReturnType<Answers[M]>>

export type ToThread =
  /** A part of a state of the commit, offer or prefix of that number. */
  | {
      readonly type: 'part'
      readonly number: number
      /** Returns the memory; the part is its first `length` numbers. */
      readonly memory: ArrayBuffer
      readonly length: number
    }
  | {
      [M in ThreadAsk]: { readonly type: 'ask'; readonly id: number; readonly method: M; readonly params: AskParams<M> }
    }[ThreadAsk]

export type FromThread =
  | { readonly type: 'opened'; readonly secret: Uint8Array; readonly owner: string }
  | { readonly type: 'spare'; readonly memory: ArrayBuffer }
  | { readonly type: 'done'; readonly id: number; readonly result: unknown }
  | { readonly type: 'failed'; readonly id: number | null; readonly error: ErrorShape }

/** How long changes may stay in the log when nothing else empties it. */
const CHECKPOINT_MS = 30_000
/** How long what was removed by the way may stay there, and how often that is looked at. */
const [PURGE_MS, PURGE_EVERY_MS] = [1000, 100]
/** The longest that a write waits for reads before it writes its next piece. */
const GIVE_WAY_MS = 50

assert(parentPort !== null, 'the store thread was started as a process')
const port = parentPort

function post(message: FromThread, transfer: readonly ArrayBuffer[] = []): void {
  port.postMessage(message, transfer)
}

/** The arrays of a state may be views of one buffer. */
function buffersOf({ tokens, tail, state }: Snapshot): ArrayBuffer[] {
  const buffers = [tokens, tail, ...state].map(({ buffer }) => buffer as ArrayBuffer)
  return [...new Set(buffers)]
}

/**
 * Parts of a commit, of offers and of prefixes that are being sent. Parts of a transfer that broke off stay until the
 * end and are never mixed with others.
 */
class Parts {
  readonly #parts = new Map<number, Float32Array[]>()

  add(number: number, part: Float32Array): void {
    const parts = this.#parts.get(number) ?? []
    parts.push(part)
    this.#parts.set(number, parts)
  }

  /** The states with their numbers. */
  join<Put extends { readonly numParts: number }>(number: number, puts: readonly Put[]) {
    const parts = this.#parts.get(number) ?? []
    this.#parts.delete(number)
    const numParts = puts.reduce((sum, put) => sum + put.numParts, 0)
    assert(parts.length === numParts, `${parts.length} parts of states came, not ${numParts}`)
    return puts.map((put) => ({ ...put, floats: parts.splice(0, put.numParts) }))
  }
}

function answersOf({ store, timers, claim }: Opened, parts: Parts): Answers {
  // Each name has its own function.
  const passed = Object.fromEntries(PASSED.map((name) => [name, store[name].bind(store)])) as Pick<OpenStore, Passed>
  return {
    ...passed,
    ...(claim === undefined ? {} : { claim }),
    commit: ({ number, puts, ...change }) => store.commit({ ...change, puts: parts.join(number, puts) }),
    offer: (number, put) => store.offer?.(parts.join(number, [put])[0]!),
    findPrefix: (...prompt) => store.prefixes?.find(...prompt) ?? null,
    publishPrefix: (number, prefix) => store.prefixes?.publish(parts.join(number, [prefix])[0]!),
    removePrefix: (...prefix) => store.prefixes?.remove(...prefix),
    close() {
      for (const timer of timers) clearInterval(timer)
      return store.close()
    },
  }
}

/** Those that come while others wait for the lock take the next turn at it together: in turn each would wait as long again. */
function claimsTogether(database: StoreDatabase): OpenStore['claim'] {
  let waiting: { readonly ask: ClaimAsk; done(claim: Claim | SkeinError): void }[] = []
  const claimAll = () => {
    const taken = waiting
    waiting = []
    let claims: readonly (Claim | SkeinError)[]
    try {
      claims = database.claimAll(taken.map(({ ask }) => ask))
    } catch (error) {
      claims = taken.map(() => SkeinError.from(error))
    }
    for (const [i, claim] of claims.entries()) taken[i]!.done(claim)
  }
  return (name, mayCreate) =>
    new Promise((resolve, reject) => {
      if (waiting.length === 0) setImmediate(claimAll)
      const done = (claim: Claim | SkeinError) => (claim instanceof SkeinError ? reject(claim) : resolve(claim))
      waiting.push({ ask: { name, mayCreate }, done })
    })
}

/** Waits while reads are under way: a write of tens of megabytes would double their time. */
function giveWay(numReads: Int32Array): void {
  const end = performance.now() + GIVE_WAY_MS
  for (let now = performance.now(); now < end; now = performance.now()) {
    const count = Atomics.load(numReads, 0)
    if (count === 0) return
    Atomics.wait(numReads, 0, count, end - now)
  }
}

/**
 * Answers calls. Calls to a cluster's database are passed on at once, in order; a close waits for all earlier calls.
 */
function serve(opened: Opened): void {
  const parts = new Parts()
  const answers = answersOf(opened, parts)
  const pending = new Set<Promise<void>>()
  const finish = (id: number, method: ThreadAsk, result: unknown) => {
    const isState = (method === 'load' || method === 'findPrefix') && result !== null
    const transfer = isState ? buffersOf(result as Snapshot) : []
    post({ type: 'done', id, result }, transfer)
    if (method === 'close') port.close()
  }
  const fail = (id: number, error: unknown) => {
    post({ type: 'failed', id, error: SkeinError.from(error).toShape() })
  }
  const wait = (id: number, method: ThreadAsk, answer: Promise<unknown>) => {
    const waiting = answer
      .then(
        (result) => finish(id, method, result),
        (error) => fail(id, error),
      )
      .finally(() => pending.delete(waiting))
    pending.add(waiting)
  }
  port.on('message', (message: ToThread) => {
    if (message.type === 'part') {
      const { number, memory, length } = message
      parts.add(number, new Float32Array(memory, 0, length).slice())
      post({ type: 'spare', memory }, [memory])
      return
    }
    const { id, method, params } = message
    // The message pairs a method with its parameters.
    const ask = () => (answers[method] as (...given: readonly unknown[]) => unknown)(...params)
    try {
      const isLast = method === 'close' && pending.size > 0
      const result = isLast ? Promise.all(pending).then(ask) : ask()
      if (result instanceof Promise) wait(id, method, result)
      else finish(id, method, result)
    } catch (error) {
      fail(id, error)
    }
  })
}

/** What the next try would meet too: somebody else's folder, a read-only file system, a path that leads through a file. */
const PERMANENT = ['EACCES', 'EPERM', 'EROFS', 'ENOTDIR', 'EEXIST', 'ENOENT']

function notOpened(error: unknown, dataFolder: string): SkeinError {
  // Errors of the file system carry a code.
  const { code = '', message } = error as NodeJS.ErrnoException
  if (!PERMANENT.includes(code)) return SkeinError.from(error)
  return new SkeinError(
    'invalid_request',
    `the data folder ${dataFolder} cannot be used: ${message}; make it this user's own, name another with --data-dir, or keep sessions in memory only with --no-store`,
    { cause: error },
  )
}

interface Opened {
  readonly store: OpenStore
  /** In place of the store's own. */
  readonly claim?: OpenStore['claim']
  readonly secret: Uint8Array
  /** What is done from time to time until the store is closed. */
  readonly timers: readonly NodeJS.Timeout[]
}

function openDatabase({ dataFolder, numReads, kind, ...options }: ThreadOptions): Opened {
  try {
    const secret = openSecret(dataFolder)
    const files = filesWith(() => giveWay(numReads))
    const database = new StoreDatabase({ ...options, files })
    const timers = [
      setInterval(() => database.checkpoint(true), CHECKPOINT_MS),
      setInterval(() => database.purge(PURGE_MS), PURGE_EVERY_MS),
    ]
    return { store: database, claim: claimsTogether(database), secret, timers }
  } catch (error) {
    throw notOpened(error, dataFolder)
  }
}

/** Who shares nothing need not have the drivers in memory. */
async function openShared(options: SharedThreadOptions): Promise<Opened> {
  const { SharedStore } = await import('../shared/shared-store.ts')
  const store = await SharedStore.open(options)
  return { store, secret: store.secret, timers: [] }
}

const options = workerData as ThreadOptions | SharedThreadOptions // given by store-thread.ts
try {
  const opened = options.kind === 'shared' ? await openShared(options) : openDatabase(options)
  serve(opened)
  post({ type: 'opened', secret: opened.secret, owner: opened.store.owner })
} catch (error) {
  post({ type: 'failed', id: null, error: SkeinError.from(error).toShape() })
  port.close()
}
