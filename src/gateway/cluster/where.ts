/**
 * What a request says about where it belongs: its model, its session, and how its prompt begins. It looks at bodies of every
 * dialect by the names of their fields and refuses nothing: a node says what is wrong with a request.
 */
import type { ModelRegistry } from '../../api/models.ts'
import type { Route } from '../../api/route.ts'
import { startStateNames } from '../routing/start-state-names.ts'

export interface Asked {
  /** As the client named it. */
  readonly model: string | null
  readonly session: string | null
  /** The beginning of its prompt; '' where it has none. */
  readonly beginning: string
}

/** Characters of a prompt that decide: some 250 tokens of English. */
const BEGINNING = 1024

/**
 * `here`: the gateway knows the answer itself. `node`: one node answers. `any`: it does not matter which. `every`: some node
 * knows of what is named, and only it can tell. `operators`: about one node, which must be named.
 */
export type Way = NonNullable<Route['inCluster']> | 'operators'

export function wayOf({ method, body, role, takesBytes, inCluster }: Route): Way {
  if (inCluster !== undefined) return inCluster
  if (role !== undefined) return 'operators'
  return method === 'POST' && (body !== null || takesBytes === true) ? 'node' : 'here'
}

export function askedOf(
  body: unknown,
  params: Readonly<Record<string, string>>,
  query: Readonly<Record<string, unknown>>,
  path: string,
): Asked {
  const fields = isRecord(body) ? body : {}
  const ofPath = path.startsWith('/v1/sessions/:id') ? (params.id ?? null) : null
  return {
    model: textOf(fields.model) ?? textOf(query.model),
    session: ofPath ?? sessionOf(fields),
    beginning: beginningOf(fields),
  }
}

export interface NamedModel {
  /** The model's own name, whatever the client calls it. */
  readonly id: string
  /** False of a start state or mixture that is not at all nodes of the model: one of them may have it. */
  readonly isSure: boolean
}

/** Throws as a node would. */
export function modelNamed(models: ModelRegistry, name: string | null): NamedModel {
  const all = models.list()
  const modelOf = (id: string) => all.find((one) => one.id === id || one.aliases?.includes(id))
  const [{ model, startState }] = startStateNames(name, (id) => modelOf(id) !== undefined)
  try {
    const { id } = models.get(name)
    const found = startState === null ? undefined : modelOf(model ?? '')
    return { id: found?.id ?? id, isSure: true }
  } catch (error) {
    if (startState === null) throw error
    return { id: models.get(model).id, isSure: false }
  }
}

function sessionOf({ session_id, session }: Readonly<Record<string, unknown>>): string | null {
  return textOf(session_id) ?? (isRecord(session) ? textOf(session.id) : null)
}

/**
 * Of a conversation, all that comes before its first answer, so that it goes on where it began; of a prompt, its first
 * characters.
 */
function beginningOf(fields: Readonly<Record<string, unknown>>): string {
  const { system, instructions, messages, input } = fields
  const conversation = Array.isArray(messages) ? messages : Array.isArray(input) ? input : null
  const texts = [system, instructions].flatMap(leavesOf)
  if (conversation === null)
    texts.push(...['contents', 'prompt', 'input', 'input_prefix'].flatMap((name) => leavesOf(fields[name])))
  else texts.push(...leavesOf(untilAnswer(conversation)))
  return texts.join('\n').slice(0, BEGINNING)
}

function untilAnswer(messages: readonly unknown[]): readonly unknown[] {
  const first = messages.findIndex((message) => isRecord(message) && message.role === 'assistant')
  return first === -1 ? messages : messages.slice(0, first)
}

/** All texts and numbers within, in order, as many as may matter. */
function leavesOf(value: unknown): string[] {
  const leaves: string[] = []
  let length = 0
  const visit = (at: unknown): void => {
    if (length >= BEGINNING || at === null || at === undefined) return
    if (typeof at === 'object') for (const part of Object.values(at)) visit(part)
    else {
      const text = String(at).slice(0, BEGINNING)
      leaves.push(text)
      length += text.length + 1
    }
  }
  visit(value)
  return leaves
}

function textOf(value: unknown): string | null {
  return typeof value === 'string' && value !== '' ? value : null
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
