/**
 * Keeps the server's event stream open: workers, samples and the state of the connection. Reconnects by itself, later
 * after each failure, and at once when the network returns or the page becomes visible.
 */
import { effect, signal } from '@preact/signals'
import type { ManagementEvent, OwnKey, Sample, SystemInfo, WorkerRecord } from '../../../src/gateway/contract.ts'
import { call, key, keyChanges, request } from './api.ts'
import { waitBefore } from './backoff.ts'
import { refreshCluster } from './cluster.ts'
import { ApiError, messageOf } from './errors.ts'
import { readEvents } from './sse.ts'
import { withSample } from './stats.ts'

export type Connection =
  | { readonly state: 'connecting' | 'live' }
  /** `at`: time of the next try, in milliseconds of Date.now(). */
  | { readonly state: 'waiting'; readonly at: number; readonly reason: string }
  /** The key may use models but not watch the server, or there is no key. */
  | { readonly state: 'refused' | 'keyless' }
  /** The address of one worker: models can be used, nothing can be managed. */
  | { readonly state: 'absent' }

export interface ModelEntry {
  readonly id: string
  readonly state: string
  /** The model of which this name is an alias or a start state. */
  readonly root?: string
}

export type Role = OwnKey['role']

export const connection = signal<Connection>({ state: 'connecting' })
export const system = signal<SystemInfo | null>(null)
export const workers = signal<readonly WorkerRecord[]>([])
export const samples = signal<readonly Sample[]>([])
/** The key's; null without a key, and until loaded. */
export const role = signal<Role | null>(null)
/** Counts reconnections: data fetched before may be from a server that has ended since. */
export const returns = signal(0)
/** The model names that requests may use. */
export const models = signal<readonly ModelEntry[] | null>(null)

/** A sample comes each second. */
const SILENCE_MS = 10_000
const POLL_MS = 10_000

export function followServer(): void {
  let current: AbortController | null = null
  // Starts again with each new key.
  effect(() => {
    keyChanges.value
    current?.abort()
    current = new AbortController()
    void stayConnected(current.signal)
  })
}

async function stayConnected(stop: AbortSignal): Promise<void> {
  let failures = 0
  while (!stop.aborted) {
    connection.value = { state: 'connecting' }
    role.value = null
    const attempt = new AbortController()
    const give = () => attempt.abort()
    stop.addEventListener('abort', give)
    try {
      await refreshModels()
      await follow(attempt, () => {
        if (failures > 0) returns.value++
        failures = 0
      })
      throw new Error('the server ended the stream')
    } catch (thrown) {
      if (stop.aborted) return
      const state = thrown instanceof ApiError ? UNWATCHED[thrown.status] : undefined
      if (state !== undefined) return stayUnwatched(state, stop)
      const reason = attempt.signal.aborted ? 'nothing came for a while' : messageOf(thrown)
      await pause(waitBefore(++failures), reason, stop)
    } finally {
      stop.removeEventListener('abort', give)
    }
  }
}

/** Statuses after which a retry would change nothing. */
const UNWATCHED: Readonly<Record<number, 'keyless' | 'refused' | 'absent'>> = {
  401: 'keyless',
  403: 'refused',
  404: 'absent',
}

/** Models can still be used, but no stream tells when they change. */
function stayUnwatched(state: 'keyless' | 'refused' | 'absent', stop: AbortSignal): void {
  connection.value = { state }
  if (state === 'keyless') return
  // A front gateway of a cluster has no workers either.
  if (state === 'absent') refreshCluster(stop).catch(() => {})
  if (state === 'refused' && key.value !== '') role.value = 'user'
  const poll = () =>
    refreshModels().catch((thrown: unknown) => {
      if (stop.aborted || !(thrown instanceof ApiError) || thrown.status !== 401) return
      // Revoked: the user was asked for another key, and would be again at every poll.
      clearInterval(timer)
      role.value = null
      connection.value = { state: 'keyless' }
    })
  const timer = setInterval(poll, POLL_MS)
  stop.addEventListener('abort', () => clearInterval(timer))
}

async function findRole(): Promise<void> {
  if (key.value === '') return
  role.value = (await call<OwnKey>('/v1/me')).role
}

async function follow(attempt: AbortController, onLive: () => void): Promise<void> {
  const reply = await request('/api/events', { signal: attempt.signal })
  let watch = setTimeout(() => attempt.abort(), SILENCE_MS)
  try {
    for await (const { event, data } of readEvents(reply.body!)) {
      clearTimeout(watch)
      watch = setTimeout(() => attempt.abort(), SILENCE_MS)
      // `contract.ts`: the type is the event's name, the data all the rest.
      take({ ...JSON.parse(data), type: event } as ManagementEvent)
      onLive()
    }
  } finally {
    clearTimeout(watch)
  }
}

function take(event: ManagementEvent): void {
  switch (event.type) {
    case 'hello':
      connection.value = { state: 'live' }
      system.value = event.system
      workers.value = event.workers
      samples.value = event.history
      // Without it only a word beside the dot is missing.
      findRole().catch(() => {})
      return
    case 'worker':
      takeWorker(event.worker)
      return
    case 'sample':
      samples.value = withSample(samples.value, event.sample)
      return
    case 'log':
      return
    default:
      // A newer server may send more.
      event satisfies never
  }
}

function takeWorker(worker: WorkerRecord): void {
  const before = workers.value.find(({ worker_id }) => worker_id === worker.worker_id)
  workers.value =
    before === undefined ? [...workers.value, worker] : workers.value.map((one) => (one === before ? worker : one))
  if (before?.phase !== worker.phase) void refreshModels().catch(() => {})
}

/** Call after a worker was removed; the stream does not report that. */
export function dropWorker(id: string): void {
  workers.value = workers.value.filter(({ worker_id }) => worker_id !== id)
}

async function refreshModels(): Promise<void> {
  models.value = (await call<{ data: ModelEntry[] }>('/v1/models')).data
}

/** Ends early when a retry makes sense now. */
function pause(ms: number, reason: string, stop: AbortSignal): Promise<void> {
  connection.value = { state: 'waiting', at: Date.now() + ms, reason }
  const ended = new AbortController()
  const { signal: end } = ended
  return new Promise((resolve) => {
    const go = () => {
      clearTimeout(timer)
      ended.abort()
      resolve()
    }
    const timer = setTimeout(go, ms)
    addEventListener('online', go, { signal: end })
    document.addEventListener('visibilitychange', () => !document.hidden && go(), { signal: end })
    stop.addEventListener('abort', go, { signal: end })
  })
}
