import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import { type ErrorCode, SkeinError } from '../../src/errors.ts'
import { type RoutedReplica, RouteMemory, Router } from '../../src/gateway/routing/router.ts'
import { answer, FakeEngineClient, type Script } from '../helpers/fake-engine.ts'

export class FakeReplica implements RoutedReplica {
  readonly id: string
  readonly fake: FakeEngineClient
  numInFlight = 0
  numGiven = 0
  neverServed = false
  isReady = true
  isGone = false

  constructor(id: string, script?: Script) {
    this.id = id
    this.fake = new FakeEngineClient(script ?? ((request) => answer(request, id)))
  }

  get client() {
    return this.isReady && !this.isGone ? this.fake : null
  }

  get engine() {
    return this.isGone ? null : this.fake
  }

  get state() {
    return this.client === null ? 'restarting' : 'ready'
  }

  get reason() {
    return this.client === null ? 'started again' : null
  }
}

let numRequests = 0

export function request(fields: Partial<GenerateRequest> = {}): GenerateRequest {
  numRequests++
  const base = {
    id: `r${numRequests}`,
    prompt: Int32Array.from({ length: 40 }, (_, i) => numRequests * 100 + i),
    n: 1,
    maxTokens: 4,
    logprobs: null,
    promptLogprobs: null,
  }
  // The fields that the fakes read; sampling and stops are not among them.
  return { ...base, ...fields } as GenerateRequest
}

export const inSession = (id: string, tenant = 't') =>
  request({ tenant, session: { id, ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' } })

export function fleetOf(...names: string[]) {
  const replicas = names.map((name) => new FakeReplica(name))
  const memory = new RouteMemory()
  const router = new Router(() => replicas, memory)
  const [a, b, c] = replicas as [FakeReplica, FakeReplica, FakeReplica]
  return { router, memory, replicas, a, b, c }
}

export async function run(router: Router, of: GenerateRequest): Promise<EngineEvent[]> {
  const events: EngineEvent[] = []
  for await (const event of router.generate(of)) events.push(event)
  return events
}

/** Fails before its first event. */
export function failing(code: ErrorCode, before = () => {}): Script {
  return () => {
    before()
    throw new SkeinError(code, 'failed')
  }
}

/** The worker that answered. */
export async function routeOf(router: Router, of: GenerateRequest): Promise<string | undefined> {
  const [first] = await run(router, of)
  return first?.type === 'prompt' ? first.worker : undefined
}
