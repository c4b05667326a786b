/** What keeps a worker alive, as the fleet sees it. `Supervisor` does; tests have others. */
import type { EngineClient } from '../../engine/client.ts'
import type { WorkerRecord } from '../contract.ts'
import type { EngineSource } from '../routing/registry.ts'

/** `client` takes requests, and is null unless the worker is ready. */
export interface Keeper extends EngineSource {
  /** What may still be asked about states: also while the worker ends. Null without a process. */
  readonly engine: EngineClient | null
  readonly pid: number | null
  /** While loading. */
  readonly progress: WorkerRecord['progress']
  /** Crashes after which it was started again. */
  readonly restarts: number
  /** Exit code of the process that ended last, or minus the number of the signal that ended it. */
  readonly exitCode: number | null
  /** Why it was given up, in the words of its last error; null unless it was. For operators: it may name files. */
  readonly failure: string | null
  /** Memory of the process; null where that is unknown. */
  readonly bytes: number | null
  /** Tokens that were asked for to see whether the process answers. */
  readonly numProbes: number
  /** Resolves when it is ready, throws if it never will be. Once. */
  start(): Promise<void>
  /** Resolves when the process has gone. What it was answering ends with an error. */
  stop(): Promise<void>
}
