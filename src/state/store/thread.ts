/**
 * Entry of the store's thread: one database, asked by messages, answering in their order. SQLite and large files would
 * hold up the engine's steps; here they hold up only one another.
 */
import { parentPort, workerData } from 'node:worker_threads'
import { assert, type ErrorShape, SkeinError } from '../../errors.ts'
import type { Snapshot } from '../snapshot.ts'
import { type DatabaseOptions, StoreDatabase } from './database.ts'
import { openSecret } from './secret.ts'
import type { StoreChange, StoredSession } from './store.ts'

export interface ThreadOptions extends Omit<DatabaseOptions, 'files'> {
  /** Where the secret is. */
  readonly dataFolder: string
}

export interface ArrayLengths {
  readonly shift: number
  readonly wkv: number
}

export type ToThread =
  | { readonly type: 'load'; readonly id: number; readonly key: string; readonly namespace: string }
  /** A part of the state of the next commit; there is one commit at a time. */
  | {
      readonly type: 'part'
      readonly name: keyof ArrayLengths
      readonly at: number
      readonly part: Float32Array
    }
  /** The arrays of its state have come in parts and have these lengths; null: it has none. */
  | {
      readonly type: 'commit'
      readonly id: number
      readonly change: StoreChange
      readonly arrays: ArrayLengths | null
    }
  | { readonly type: 'close'; readonly id: number }

export type FromThread =
  | { readonly type: 'opened'; readonly secret: Uint8Array; readonly sessions: StoredSession[] }
  | { readonly type: 'done'; readonly id: number; readonly snapshot: Snapshot | null }
  | { readonly type: 'failed'; readonly id: number | null; readonly error: ErrorShape }

/** How long changes may stay in the log when nothing else empties it. */
const CHECKPOINT_MS = 30_000

assert(parentPort !== null, 'the store thread was started as a process')
const port = parentPort

function post(message: FromThread, transfer: readonly ArrayBuffer[] = []): void {
  port.postMessage(message, transfer)
}

function buffersOf({ tokens, tail, state }: Snapshot): ArrayBuffer[] {
  // decodeSnapshot makes plain buffers of their own.
  return [tokens, tail, state.shift, state.wkv].map(({ buffer }) => buffer as ArrayBuffer)
}

function assemble(
  { change, arrays }: ToThread & { type: 'commit' },
  parts: readonly (ToThread & { type: 'part' })[],
): StoreChange {
  const { put } = change
  if (put === null || arrays === null) return change
  const state = { shift: new Float32Array(arrays.shift), wkv: new Float32Array(arrays.wkv) }
  for (const { name, at, part } of parts) state[name].set(part, at)
  const numFloats = parts.reduce((sum, { part }) => sum + part.length, 0)
  assert(numFloats === arrays.shift + arrays.wkv, 'a state came to the store with a part missing')
  return { ...change, put: { ...put, snapshot: { ...put.snapshot, state } } }
}

function serve(database: StoreDatabase): void {
  const timer = setInterval(() => database.checkpoint(), CHECKPOINT_MS)
  let parts: (ToThread & { type: 'part' })[] = []
  const takeParts = (): typeof parts => {
    const taken = parts
    parts = []
    return taken
  }
  port.on('message', (message: ToThread) => {
    if (message.type === 'part') {
      parts.push(message)
      return
    }
    const { id } = message
    try {
      if (message.type === 'load') {
        const snapshot = database.load(message.key, message.namespace)
        post({ type: 'done', id, snapshot }, buffersOf(snapshot))
        return
      }
      if (message.type === 'commit') database.commit(assemble(message, takeParts()))
      else {
        clearInterval(timer)
        database.close()
      }
      post({ type: 'done', id, snapshot: null })
      if (message.type === 'close') port.close()
    } catch (error) {
      post({ type: 'failed', id, error: SkeinError.from(error).toShape() })
    }
  })
}

try {
  const { dataFolder, ...options } = workerData as ThreadOptions // given by store-thread.ts
  const secret = openSecret(dataFolder)
  const database = new StoreDatabase(options)
  serve(database)
  post({ type: 'opened', secret, sessions: database.sessions() })
} catch (error) {
  post({ type: 'failed', id: null, error: SkeinError.from(error).toShape() })
  port.close()
}
