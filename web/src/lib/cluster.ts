/** The cluster behind a front gateway, and the paths to its nodes. Null if the server is not a front gateway. */
import { signal } from '@preact/signals'
import type { ClusterInfo, SystemInfo, WorkerLogs, WorkerRecord } from '../../../src/gateway/contract.ts'
import { call } from './api.ts'

export const cluster = signal<ClusterInfo | null>(null)

export async function refreshCluster(abort: AbortSignal): Promise<void> {
  cluster.value = await call<ClusterInfo>('/api/cluster', { signal: abort })
}

const through = (node: string) => `/api/cluster/nodes/${encodeURIComponent(node)}/proxy`

export function nodeSystem(node: string, abort: AbortSignal): Promise<SystemInfo> {
  return call(`${through(node)}/api/system`, { signal: abort })
}

export function nodeWorkers(node: string, abort: AbortSignal): Promise<readonly WorkerRecord[]> {
  return call(`${through(node)}/api/workers`, { signal: abort })
}

export function nodeLogs(node: string, worker: string, abort: AbortSignal): Promise<WorkerLogs> {
  return call(`${through(node)}/api/workers/${worker}/logs?tail=500`, { signal: abort })
}

export async function changeNodeWorker(node: string, worker: string, action: 'stop' | 'restart'): Promise<void> {
  await call(`${through(node)}/api/workers/${worker}/${action}`, { method: 'POST' })
}
