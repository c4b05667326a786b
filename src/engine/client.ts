/**
 * The engine as its callers see it, the same whether it runs in this process or in a worker. The gateway, the library
 * entry and the benches hold only this; they never see a slot or a step.
 */
import type { SkeinError } from '../errors.ts'
import type { EngineCall, EngineCalls, EngineEvent, EngineInfo, GenerateRequest } from './messages.ts'
import type { EngineStats } from './stats.ts'

export interface EngineClient {
  readonly info: EngineInfo
  /** Latest counters known here. */
  readonly stats: EngineStats
  /**
   * Starts a request at once and yields its events. Ends after `finish` of every choice. Throws a SkeinError for an
   * `error` event (queue_full, kernel_failed, model_not_loaded when the worker dies, …).
   * Aborting the signal, or leaving the loop early, cancels the request and frees its slots within one step.
   */
  generate(request: GenerateRequest, signal?: AbortSignal): AsyncIterable<EngineEvent>
  /** Asks for something beside an answer: sessions; see EngineCalls. Rejects with a SkeinError. */
  call<M extends EngineCall>(method: M, params: EngineCalls[M]['params']): Promise<EngineCalls[M]['result']>
  /**
   * What any request of this tenant would be refused with now, whatever it asks for; null: nothing. Absent: not known before
   * it is asked.
   */
  refusalOf?(tenant: string): SkeinError | null
  close(): Promise<void>
}
