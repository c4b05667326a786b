/** The routes of sessions (docs/api.md), for one model. */
import { call, request } from './api.ts'
import type { TreeNode } from './tree.ts'

export interface Turn {
  readonly turn: number
  readonly parent: number
  readonly tokens: number
  readonly created: number
  readonly tier: 'device' | 'memory' | 'disk'
  readonly saved: boolean
}

export interface Session {
  readonly id: string
  readonly version: number
  readonly head: number
  readonly created: number
  readonly updated: number
  readonly expires: number | null
  readonly bytes: number
  readonly busy: boolean
  readonly turns: readonly Turn[]
}

export type TurnNode = Turn & TreeNode

export function turnNodes({ turns }: Session): TurnNode[] {
  return turns.map((turn) => ({ ...turn, id: turn.turn }))
}

export function headTurn({ turns, head }: Session): Turn | undefined {
  return turns.find(({ turn }) => turn === head)
}

export async function listSessions(model: string, signal: AbortSignal): Promise<Session[]> {
  const path = `/v1/sessions?model=${encodeURIComponent(model)}`
  return (await call<{ data: Session[] }>(path, { signal })).data
}

export async function deleteSession(model: string, id: string): Promise<void> {
  await call(pathOf(model, id), { method: 'DELETE' })
}

export async function forkSession(
  model: string,
  id: string,
  turn: number,
  newId: string,
): Promise<void> {
  await call(pathOf(model, id, 'fork'), { body: { model, turn, new_id: newId } })
}

export async function rewindSession(model: string, id: string, turn: number): Promise<void> {
  await call(pathOf(model, id, 'rewind'), { body: { model, turn } })
}

export async function exportSession(model: string, id: string, turn: number): Promise<void> {
  const reply = await request(`${pathOf(model, id, 'export')}&turn=${turn}`)
  const link = document.createElement('a')
  const address = URL.createObjectURL(await reply.blob())
  link.href = address
  link.download = `${id.replace(/[^\w.-]+/g, '_')}-${turn}.state`
  link.click()
  URL.revokeObjectURL(address)
}

export async function importSession(model: string, id: string, file: File): Promise<void> {
  await call(pathOf(model, id, 'import'), { method: 'POST', body: file })
}

function pathOf(model: string, id: string, action?: string): string {
  const end = action === undefined ? '' : `/${action}`
  return `/v1/sessions/${encodeURIComponent(id)}${end}?model=${encodeURIComponent(model)}`
}
