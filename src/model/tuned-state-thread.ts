/** Entry of a thread that reads one start state from a file, says what came of it, and ends: see tuned-state-aside.ts. */
import { parentPort, workerData } from 'node:worker_threads'
import { assert, type ErrorShape, SkeinError } from '../errors.ts'
import type { StateData, StateShape } from './runner.ts'
import { openTunedState } from './tuned-state-file.ts'

export interface Reading {
  readonly path: string
  readonly shape: StateShape
}

export type Read = { readonly state: StateData } | { readonly error: ErrorShape }

assert(parentPort !== null, 'the thread of a start state was started as a process')
const { path, shape } = workerData as Reading // given by tuned-state-aside.ts

function read(): Read {
  try {
    return { state: openTunedState(path, shape) }
  } catch (error) {
    return { error: SkeinError.from(error).toShape() }
  }
}

parentPort.postMessage(read())
