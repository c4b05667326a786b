/**
 * Models whose requests are observed for metrics, traces and the limits of keys. One iterator passes each event to all
 * observers, so that dialects need not know them and a token does not pass through one iterator after another.
 */
import type { ModelRegistry, ServedModel } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import type { EngineCall, EngineCalls, EngineEvent, GenerateRequest } from '../../engine/messages.ts'
import { type Ending, opened, Relay } from './relay.ts'
import { changedModels, wrapClient } from './wrap-client.ts'

export interface Watch {
  /** The request to send to the engine instead. */
  readonly request?: GenerateRequest
  /** `numDrawn`: drawn tokens that no earlier event reported. */
  event(event: EngineEvent, numDrawn: number): void
  /** Called once, even if the engine was never asked. */
  end(ending: Ending): void
}

export interface Observer {
  /** Called before the request is sent. It may refuse the request or delay it. */
  begin(model: ServedModel, request: GenerateRequest, signal: AbortSignal | undefined): Watch | Promise<Watch>
  /** Replaces the parameters of a call. */
  paramsOf?<M extends EngineCall>(method: M, params: EngineCalls[M]['params']): EngineCalls[M]['params']
}

/** Observers begin in order. */
export function observedModels(models: ModelRegistry, observers: readonly Observer[]): ModelRegistry {
  return changedModels(models, (model) => observed(model, observers))
}

function observed(model: ServedModel, observers: readonly Observer[]): ServedModel {
  return wrapClient(model, {
    generate: (request, signal) => watched(model, observers, request, signal),
    call: (method, params) => {
      let asked = params
      for (const { paramsOf } of observers) asked = paramsOf?.(method, asked) ?? asked
      return model.client.call(method, asked)
    },
  })
}

function watched(
  model: ServedModel,
  observers: readonly Observer[],
  given: GenerateRequest,
  signal: AbortSignal | undefined,
): ReturnType<EngineClient['generate']> {
  const watches: Watch[] = []
  const drawn = new DrawnTokens(given.n)
  return new Relay({
    async open() {
      let request = given
      for (const observer of observers) {
        const begun = observer.begin(model, request, signal)
        // Avoids a turn of promises if no observer waits, so that the engine is asked at once.
        const watch = begun instanceof Promise ? await begun : begun
        watches.push(watch)
        request = watch.request ?? request
      }
      return opened(model.client.generate(request, signal))
    },
    event(event) {
      const numDrawn = drawn.toldBy(event)
      for (const watch of watches) watch.event(event, numDrawn)
      return event
    },
    end(ending) {
      for (const watch of watches) watch.end(ending)
    },
  })
}

/** Counts the tokens drawn for one request from its events, including answers that never end. */
class DrawnTokens {
  /** Tokens reported so far, by choice. */
  readonly #told: number[]

  constructor(n: number) {
    this.#told = new Array<number>(n).fill(0)
  }

  /** Tokens that no earlier event reported. */
  toldBy(event: EngineEvent): number {
    if (event.type === 'text') {
      this.#told[event.index]! += event.tokens.length
      return event.tokens.length
    }
    if (event.type !== 'finish') return 0
    // Stop tokens, and tokens that a stop string removed, appear only here. The counter never goes down.
    return Math.max(0, event.completionTokens - this.#told[event.index]!)
  }
}
