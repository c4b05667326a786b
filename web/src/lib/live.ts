/**
 * The server's event stream, kept open: the workers, the samples, and how the connection is. Reconnects by itself, later
 * after each failure, and at once when the network comes back or the page is looked at again.
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
  /** `at`: when the next try is, in milliseconds of Date.now(). */
  | { readonly state: 'waiting'; readonly at: number; readonly reason: string }
  /** The key may not watch the server, though it may use its models; or there is none. */
  | { readonly state: 'refused' | 'keyless' }
  /** A worker's own address: models, and nothing to manage. */
  | { readonly state: 'absent' }

export interface ModelEntry {
  readonly id: string
  readonly state: string
  /** The model that it is another name of, or a state of. */
  readonly root?: string
}

export type Role = OwnKey['role']

export const connection = signal<Connection>({ state: 'connecting' })
export const system = signal<SystemInfo | null>(null)
export const workers = signal<readonly WorkerRecord[]>([])
export const samples = signal<readonly Sample[]>([])
/** Of the key; null without one, and until it is known. */
export const role = signal<Role | null>(null)
/** How often the server was found again after a failure: what was fetched before may be of one that ended since. */
export const returns = signal(0)
/** What requests may name. */
export const models = signal<readonly ModelEntry[] | null>(null)

/** A sample comes each second. */
const SILENCE_MS = 10_000
const POLL_MS = 10_000

export function followServer(): void {
  let current: AbortController | null = null
  // Begins anew with each key that is given.
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

/** Replies after which trying again would change nothing. */
const UNWATCHED: Readonly<Record<number, 'keyless' | 'refused' | 'absent'>> = {
  401: 'keyless',
  403: 'refused',
  404: 'absent',
}

/** Models may be used all the same; no stream says when they change. */
function stayUnwatched(state: 'keyless' | 'refused' | 'absent', stop: AbortSignal): void {
  connection.value = { state }
  if (state === 'keyless') return
  // A front gateway of a cluster has no workers of its own either.
  if (state === 'absent') refreshCluster(stop).catch(() => {})
  if (state === 'refused' && key.value !== '') role.value = 'user'
  const poll = () =>
    refreshModels().catch((thrown: unknown) => {
      if (stop.aborted || !(thrown instanceof ApiError) || thrown.status !== 401) return
      // Revoked: it was asked for another, and would be at every poll.
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
      // Only a word beside the dot is missing then.
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
      // A newer server may say more.
      event satisfies never
  }
}

function takeWorker(worker: WorkerRecord): void {
  const before = workers.value.find(({ worker_id }) => worker_id === worker.worker_id)
  workers.value =
    before === undefined ? [...workers.value, worker] : workers.value.map((one) => (one === before ? worker : one))
  if (before?.phase !== worker.phase) void refreshModels().catch(() => {})
}

/** After a worker was forgotten, of which the stream says nothing. */
export function dropWorker(id: string): void {
  workers.value = workers.value.filter(({ worker_id }) => worker_id !== id)
}

export async function refreshModels(): Promise<void> {
  models.value = (await call<{ data: ModelEntry[] }>('/v1/models')).data
}

/** Ends early when it makes sense to try now. */
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
