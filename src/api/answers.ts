/**
 * The events of all prompts of one call as one stream: prompts run side by side in the engine, and whichever has
 * something new comes next. Cancels every one of them as soon as the consumer leaves, the client goes, or one fails.
 */
import type { EngineClient } from '../engine/client.ts'
import type { EngineEvent, GenerateRequest } from '../engine/messages.ts'
import { SkeinError } from '../errors.ts'

export interface Answered {
  /** Which of the call's prompts. */
  readonly prompt: number
  readonly event: Exclude<EngineEvent, { type: 'error' }>
}

/** Runs all requests; ends when every choice of every one has finished, and not otherwise. */
export async function* runAll(
  client: EngineClient,
  requests: readonly GenerateRequest[],
  signal: AbortSignal,
): AsyncGenerator<Answered> {
  const leaving = new AbortController()
  const either = AbortSignal.any([signal, leaving.signal])
  const streams = requests.map((request, prompt) => run(client, request, prompt, either))
  try {
    yield* streams.length === 1 ? streams[0]! : merge(streams)
  } finally {
    // Before return(): a generator that waits for its next event only hears the signal.
    leaving.abort()
    await Promise.allSettled(streams.map((stream) => stream.return(undefined)))
  }
}

async function* run(
  client: EngineClient,
  request: GenerateRequest,
  prompt: number,
  signal: AbortSignal,
): AsyncGenerator<Answered> {
  let unfinished = request.n
  for await (const event of client.generate(request, signal)) {
    if (event.type === 'error') throw SkeinError.fromShape(event.error)
    if (event.type === 'finish') unfinished--
    yield { prompt, event }
  }
  if (signal.aborted) throw new SkeinError('aborted', 'the client went away')
  // A short answer that looks complete would be worse than an error.
  if (unfinished > 0) throw new SkeinError('internal', 'the engine ended an answer unfinished')
}

type Arrival<T> =
  | { readonly stream: AsyncGenerator<T>; readonly result: IteratorResult<T, unknown> }
  | { readonly failure: unknown }

/** Whatever arrives first comes first; no stream is more than one item ahead of the consumer. */
async function* merge<T>(streams: readonly AsyncGenerator<T>[]): AsyncGenerator<T> {
  let arrivals: Arrival<T>[] = []
  let wake = () => {}
  const arrive = (arrival: Arrival<T>) => {
    arrivals.push(arrival)
    wake()
  }
  const pull = (stream: AsyncGenerator<T>) => {
    stream.next().then(
      (result) => arrive({ stream, result }),
      (failure) => arrive({ failure }),
    )
  }
  for (const stream of streams) pull(stream)
  let open = streams.length
  while (open > 0) {
    if (arrivals.length === 0) {
      await new Promise<void>((resolve) => {
        wake = resolve
      })
    }
    const batch = arrivals
    arrivals = []
    for (const arrival of batch) {
      if ('failure' in arrival) throw arrival.failure
      if (arrival.result.done) {
        open--
        continue
      }
      yield arrival.result.value
      pull(arrival.stream)
    }
  }
}
