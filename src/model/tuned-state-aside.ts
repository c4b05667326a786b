/** Start states read while the engine goes on: a file of a large model takes many steps' time. */
import { Worker } from 'node:worker_threads'
import { SkeinError } from '../errors.ts'
import type { StateData, StateShape } from './runner.ts'
import type { Read, Reading } from './tuned-state-thread.ts'

/** As openTunedState, on a thread of its own. */
export function readTunedStateAside(path: string, shape: StateShape): Promise<StateData> {
  const workerData: Reading = { path, shape }
  const worker = new Worker(new URL('./tuned-state-thread.js', import.meta.url), { workerData })
  return new Promise((resolve, reject) => {
    worker.once('message', (read: Read) => {
      if ('state' in read) resolve(read.state)
      else reject(SkeinError.fromShape(read.error))
    })
    worker.once('error', reject)
    worker.once('exit', (code) => {
      reject(new SkeinError('internal', `the thread that read ${path} ended (exit code ${code})`))
    })
  })
}
