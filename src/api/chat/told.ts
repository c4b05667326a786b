/**
 * What a line of responses, or a session, has been told last: its instructions and its tools. The model has read them, so a
 * turn that goes on with the same is not told again; the client sends them with each, since neither is inherited.
 */
import { createHash } from 'node:crypto'
import type { SessionInfo, SessionUse } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import type { ServedModel } from '../models.ts'
import type { Conversation } from './conversation.ts'

/** Digests; null: none. */
export interface Told {
  readonly instructions: string | null
  readonly tools: string | null
}

const NOTHING_TOLD: Told = { instructions: null, tools: null }

/**
 * By its last turn. Nothing of one that is not there: a response that goes on from it is refused where it begins. Nothing of a
 * busy one either: the turn under way may tell others.
 */
export async function toldBefore({ client }: ServedModel, tenant: string, id: string | null): Promise<Told> {
  if (id === null) return NOTHING_TOLD
  try {
    const { note, isBusy }: SessionInfo = await client.call('sessions.get', { tenant, id })
    return note === undefined || isBusy
      ? NOTHING_TOLD
      : ((JSON.parse(note) as { readonly told?: Told }).told ?? NOTHING_TOLD)
  } catch (thrown) {
    if (thrown instanceof SkeinError && thrown.code === 'not_found') return NOTHING_TOLD
    throw thrown
  }
}

/** A turn of a session that its user names: which tools it is told, kept with it. */
export async function newInSession(
  conversation: Conversation,
  model: ServedModel,
  tenant: string,
  session: SessionUse,
): Promise<{ readonly conversation: Conversation; readonly session: SessionUse }> {
  const isSaid = session.note !== undefined || conversation.tools.length === 0
  if (isSaid) return { conversation, session }
  // Of an earlier turn that it goes on from nothing is known.
  const id = session.from === undefined ? session.id : null
  const { conversation: next, told } = onlyNew(conversation, null, await toldBefore(model, tenant, id))
  return { conversation: next, session: { ...session, note: JSON.stringify({ told }) } }
}

/** The conversation without what has been told, and what has been then. `instructions`: its first message, where given. */
export function onlyNew(conversation: Conversation, instructions: string | null, before: Told) {
  const { messages, tools, choice } = conversation
  const own = instructions === null ? null : digestOf(instructions)
  const isSame = own !== null && own === before.instructions
  const all = digestOf(tools)
  // One that must be called by its name is the only one of the list.
  const list = typeof choice === 'string' ? all : digestOf([all, choice.name])
  const isListed = tools.length > 0 && choice !== 'none'
  const areToolsTold = isListed && [all, list].includes(before.tools ?? '')
  return {
    conversation: { ...conversation, messages: isSame ? messages.slice(1) : messages, areToolsTold },
    told: { instructions: own ?? before.instructions, tools: isListed && !areToolsTold ? list : before.tools },
  }
}

function digestOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('base64url').slice(0, 22)
}
