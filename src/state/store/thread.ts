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

export type ToThread =
  | { readonly type: 'load'; readonly id: number; readonly key: string; readonly namespace: string }
  | { readonly type: 'commit'; readonly id: number; readonly change: StoreChange }
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

function serve(database: StoreDatabase): void {
  const timer = setInterval(() => database.checkpoint(), CHECKPOINT_MS)
  port.on('message', (message: ToThread) => {
    const { id } = message
    try {
      if (message.type === 'load') {
        const snapshot = database.load(message.key, message.namespace)
        post({ type: 'done', id, snapshot }, buffersOf(snapshot))
        return
      }
      if (message.type === 'commit') database.commit(message.change)
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
