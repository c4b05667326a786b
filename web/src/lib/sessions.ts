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

/** Most recently used first. */
export async function listSessions(model: string, signal: AbortSignal, page = ''): Promise<Session[]> {
  const path = `/v1/sessions?model=${encodeURIComponent(model)}${page}`
  return (await call<{ data: Session[] }>(path, { signal })).data
}

/** The id of a stored response of the Responses API, which is a session, too. */
const RESPONSE = /^resp_[0-9a-f]{32}$/
/** Programs store responses by the thousand; past this many sessions no conversation is looked for. */
const MOST_LOOKED = 2000

/** The latest sessions that are no stored responses. */
export async function listConversations(model: string, signal: AbortSignal, most: number): Promise<Session[]> {
  const found: Session[] = []
  let after = ''
  for (let looked = 0; looked < MOST_LOOKED && found.length < most; looked += most) {
    const sessions = await listSessions(model, signal, `&limit=${most}${after}`)
    found.push(...sessions.filter(({ id }) => !RESPONSE.test(id)))
    if (sessions.length < most) break
    after = `&after=${encodeURIComponent(sessions.at(-1)!.id)}`
  }
  return found.slice(0, most)
}

export async function getSession(model: string, id: string, signal: AbortSignal): Promise<Session> {
  return call(pathOf(model, id), { signal })
}

export async function deleteSession(model: string, id: string): Promise<void> {
  await call(pathOf(model, id), { method: 'DELETE' })
}

export async function forkSession(model: string, id: string, turn: number, newId: string): Promise<void> {
  await call(pathOf(model, id, 'fork'), { body: { model, turn, new_id: newId } })
}

export async function rewindSession(model: string, id: string, turn: number): Promise<void> {
  await call(pathOf(model, id, 'rewind'), { body: { model, turn } })
}

/** Makes a link for other keys, valid for a week by the server's default. */
export async function shareSession(model: string, id: string, turn: number): Promise<string> {
  return (await call<{ token: string }>(pathOf(model, id, 'share'), { body: { model, turn } })).token
}

/** Makes a copy of the conversation behind a shared link. */
export async function openShared(model: string, newId: string, token: string): Promise<void> {
  await call(pathOf(model, newId, 'open'), { body: { model, token } })
}

export async function exportSession(model: string, id: string, turn: number): Promise<void> {
  const reply = await request(`${pathOf(model, id, 'export')}&turn=${turn}`)
  saveFile(`${fileNameOf(id)}-${turn}.state`, await reply.blob())
}

export function fileNameOf(name: string): string {
  return name.replace(/[^\p{L}\p{N}.-]+/gu, '_').slice(0, 60)
}

export function saveFile(name: string, content: Blob): void {
  const link = document.createElement('a')
  const address = URL.createObjectURL(content)
  link.href = address
  link.download = name
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
