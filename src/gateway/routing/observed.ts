/**
 * Models whose requests are observed: by what counts them, what traces them, and what bounds how much a key may use. One
 * iterator tells all of them of each event, so that no dialect knows of them and a token does not pass one after the other.
 */
import type { ModelRegistry, ServedModel } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import type { EngineCall, EngineCalls, EngineEvent, GenerateRequest } from '../../engine/messages.ts'
import { withChangedClient } from './changed-client.ts'
import { type Ending, opened, Relay } from './relay.ts'

/** What an observer makes of one request. */
export interface Watch {
  /** What is asked of the engine in its place. */
  readonly request?: GenerateRequest
  /** `numDrawn`: drawn tokens that no event before this one has told of. */
  event(event: EngineEvent, numDrawn: number): void
  /** Called once, also when the engine was never asked. */
  end(ending: Ending): void
}

export interface Observer {
  /** Called before the request is sent. It may be refused here, or have to wait. */
  begin(model: ServedModel, request: GenerateRequest, signal: AbortSignal | undefined): Watch | Promise<Watch>
  /** What is asked with a call in place of `params`. */
  paramsOf?<M extends EngineCall>(method: M, params: EngineCalls[M]['params']): EngineCalls[M]['params']
}

/** The observers that come first begin first. */
export function observedModels(models: ModelRegistry, observers: readonly Observer[]): ModelRegistry {
  return { list: () => models.list(), get: (name) => observed(models.get(name), observers) }
}

function observed(model: ServedModel, observers: readonly Observer[]): ServedModel {
  return withChangedClient(model, {
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
        // Without a turn of promises where nobody waits, so that the engine is asked at once.
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

/** The tokens of one request's answers, as its events tell of them: also of answers that never come to their end. */
class DrawnTokens {
  /** By choice, so far. */
  readonly #told: number[]

  constructor(n: number) {
    this.#told = new Array<number>(n).fill(0)
  }

  /** Those that no event before this one has told of. */
  toldBy(event: EngineEvent): number {
    if (event.type === 'text') {
      this.#told[event.index]! += event.tokens.length
      return event.tokens.length
    }
    if (event.type !== 'finish') return 0
    // Stopping tokens, and those that a stop string swallowed, show only here. A counter never goes down.
    return Math.max(0, event.completionTokens - this.#told[event.index]!)
  }
}
