/** Calls of the management API that change something. The event stream (live.ts) brings the current state. */
import type {
  HubModel,
  HubRepository,
  ModelFile,
  ModelQuantisation,
  PullRecord,
  WorkerRecord,
  WorkerSpec,
} from '../../../src/gateway/contract.ts'
import { call } from './api.ts'
import { dropWorker } from './live.ts'

const path = (id: string) => `/api/workers/${encodeURIComponent(id)}`

export function startWorker(spec: Partial<WorkerSpec>): Promise<WorkerRecord> {
  return call('/api/workers/start', { body: spec })
}

export async function stopWorker(id: string): Promise<void> {
  await call(`${path(id)}/stop`, { method: 'POST' })
}

export async function restartWorker(id: string): Promise<void> {
  await call(`${path(id)}/restart`, { method: 'POST' })
}

export async function forgetWorker(id: string): Promise<void> {
  await call(path(id), { method: 'DELETE' })
  dropWorker(id)
}

export async function modelFiles(signal: AbortSignal): Promise<readonly ModelFile[]> {
  return (await call<{ models: ModelFile[] }>('/api/models', { signal })).models
}

export async function pulls(signal: AbortSignal): Promise<readonly PullRecord[]> {
  return (await call<{ pulls: PullRecord[] }>('/api/models/pulls', { signal })).pulls
}

export async function searchHub(words: string, signal: AbortSignal): Promise<readonly HubRepository[]> {
  const query = new URLSearchParams({ search: words })
  const reply = await call<{ repositories: HubRepository[] }>(`/api/models/hub?${query}`, { signal })
  return reply.repositories
}

export async function hubModels(repository: string, signal: AbortSignal): Promise<readonly HubModel[]> {
  const query = new URLSearchParams({ repository })
  return (await call<{ models: HubModel[] }>(`/api/models/hub/files?${query}`, { signal })).models
}

export function startPull(name: string): Promise<PullRecord> {
  return call('/api/models/pulls', { body: { name } })
}

export function quantiseModel(asked: ModelQuantisation): Promise<PullRecord> {
  return call('/api/models/quantise', { body: asked })
}

export async function deleteModel(name: string): Promise<void> {
  await call(`/api/models/${encodeURIComponent(name)}`, { method: 'DELETE' })
}

export function logStreamPath(id: string, tail: number): string {
  return `${path(id)}/logs/stream?tail=${tail}`
}
