/**
 * The priority and deadline of a request: from its own fields, else from its key. The key's values are also the
 * maximum. Both wrap the engine's client, so they apply to every answer of a call.
 */
import type { ModelRegistry, ServedModel } from '../../api/models.ts'
import type { Route } from '../../api/route.ts'
import type { UrgencyFields } from '../../api/schema.ts'
import type { EngineClient } from '../../engine/client.ts'
import type { EngineEvent, GenerateRequest } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import { changedModels, wrapClient } from '../routing/wrap-client.ts'
import type { KeyLimits } from './keys.ts'

interface Urgency {
  readonly priority: number
  /** Null: no deadline. */
  readonly seconds: number | null
  /** By the monotonic clock, in milliseconds. */
  readonly deadline: number
}

type OwnLimits = Pick<KeyLimits, 'priority' | 'timeoutSeconds'>

/**
 * The models for a call with this body; its time starts now. Throws `invalid_request` if it asks for more than its key
 * allows.
 */
export function urgentModels(models: ModelRegistry, route: Route, body: unknown, limits: OwnLimits): ModelRegistry {
  const urgency = urgencyOf(asks(route) ? (body as UrgencyFields) : {}, limits)
  return changedModels(models, (model) => urgent(model, urgency))
}

/** Whether the route asks the engine: its schema has the fields, so that the body was checked for them. */
export function asks({ body }: Route): boolean {
  const { properties = {} } = (body ?? {}) as { readonly properties?: object }
  return 'priority' in properties && 'timeout' in properties
}

function urgencyOf({ priority, timeout }: UrgencyFields, limits: OwnLimits): Urgency {
  const most = limits.priority ?? 0
  if (priority != null && priority > most) {
    const message = `priority: got ${priority}, and this key's requests may have at most ${most}; a higher one is served earlier here, in vLLM later`
    throw new SkeinError('invalid_request', message, { param: 'priority' })
  }
  const longest = limits.timeoutSeconds ?? null
  if (timeout != null && longest !== null && timeout > longest) {
    const message = `timeout: got ${timeout} s, and this key's requests may take at most ${longest} s`
    throw new SkeinError('invalid_request', message, { param: 'timeout' })
  }
  const seconds = timeout ?? longest
  const deadline = seconds === null ? Number.POSITIVE_INFINITY : performance.now() + 1000 * seconds
  return { priority: priority ?? most, seconds, deadline }
}

function urgent(model: ServedModel, urgency: Urgency): ServedModel {
  const { client } = model
  const { priority, seconds } = urgency
  return wrapClient(model, {
    generate: (given, signal) => {
      const request = priority === 0 ? given : { ...given, priority }
      return seconds === null
        ? client.generate(request, signal)
        : untilDeadline(client, request, signal, { ...urgency, seconds })
    },
  })
}

/** Cancels at the deadline, in any phase: the slot becomes free, and a session keeps what `on_cancel` says. */
async function* untilDeadline(
  client: EngineClient,
  request: GenerateRequest,
  signal: AbortSignal | undefined,
  { deadline, seconds }: Urgency & { readonly seconds: number },
): AsyncGenerator<EngineEvent> {
  const ending = new AbortController()
  const left = deadline - performance.now()
  if (left <= 0) throw tooLate(seconds)
  const timer = setTimeout(() => ending.abort(), left)
  const either = signal === undefined ? ending.signal : AbortSignal.any([signal, ending.signal])
  let unfinished = request.n
  try {
    for await (const event of client.generate(request, either)) {
      if (event.type === 'finish') unfinished--
      yield event
    }
  } catch (thrown) {
    if (!ending.signal.aborted || signal?.aborted) throw thrown
  } finally {
    clearTimeout(timer)
  }
  const isLate = ending.signal.aborted && unfinished > 0
  if (isLate && !signal?.aborted) throw tooLate(seconds)
}

function tooLate(seconds: number): SkeinError {
  const message = `the answer was not complete within the ${seconds} s that it had (timeout)`
  return new SkeinError('deadline_exceeded', message)
}
