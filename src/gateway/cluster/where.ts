/**
 * Finds where a request belongs: its model, its session, and the start of its prompt. It reads bodies of every dialect
 * by field names and refuses nothing, because nodes report what is wrong with a request.
 */
import type { ModelRegistry } from '../../api/models.ts'
import type { Route } from '../../api/route.ts'
import { isObject } from '../../files/bytes.ts'
import { startStateNames } from '../routing/start-state-names.ts'

export interface Asked {
  /** As the client named it. */
  readonly model: string | null
  readonly session: string | null
  /** The start of its prompt; '' if it has none. */
  readonly beginning: string
}

/** Characters of a prompt that count: about 250 tokens of English. */
const BEGINNING = 1024

/**
 * `here`: the gateway answers itself. `node`: the request's node answers. `any`: any node can. `every`: some node knows
 * the named thing, and the gateway cannot tell which. `operators`: it is about one node, which must be named.
 */
type Way = NonNullable<Route['inCluster']> | 'operators'

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
  const fields = isObject(body) ? body : {}
  const ofPath = path.startsWith('/v1/sessions/:id') ? (params.id ?? null) : null
  return {
    model: textOf(fields.model) ?? textOf(query.model),
    session: ofPath ?? textOf(fields.session_id) ?? (isObject(fields.session) ? textOf(fields.session.id) : null),
    beginning: beginningOf(fields),
  }
}

export interface NamedModel {
  /** The model's own name, even if the client used an alias. */
  readonly id: string
  /** False for a start state or mixture that not all nodes of the model have: one of them may have it. */
  readonly isSure: boolean
}

/** Throws the same errors as a node. */
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

/**
 * Everything before the first answer of a conversation, so that later turns match, or the first characters of a prompt.
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
  const first = messages.findIndex((message) => isObject(message) && message.role === 'assistant')
  return first === -1 ? messages : messages.slice(0, first)
}

/** All texts and numbers in the value, in order, until there are enough. */
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
