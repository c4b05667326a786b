/**
 * /openai/v1/*: OpenAI's shapes with rwkv_lightning's fields, defaults and errors. Also answers on /v1/chat/completions where
 * a body has both `messages` and `contents`, of one entry, which is then the last thing the user says.
 */
import { invalid } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { encodeChat } from '../chat/prepare.ts'
import { plainForm } from '../chat/reply.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { type Chat, replyOf } from '../openai/chat.ts'
import { chatBody, MaybeMessages, toTurns } from '../openai/chat-schema.ts'
import { filled, oneMaxTokens, present } from '../openai/sampling.ts'
import { type Call, get, json, type Route } from '../route.ts'
import { Maybe } from '../schema.ts'
import { sessionFields, sessionUse } from '../sessions/use.ts'
import { CHAT_LAYOUT, CHAT_STOPS, chatTail, type Turn } from '../template.ts'
import { answering, Contents, lightningFields, modelOf, OPENAI_ROUTE, settingsOf } from './body.ts'

const SHARED_PATH = '/v1/chat/completions'

export function openAiRoutes(limits: RequestLimits, live: LiveCalls): readonly Route[] {
  const body = openAiBody(limits)
  const chat = (path: string) =>
    answering(path, 'Answer a conversation, with the defaults of rwkv_lightning', body, async (call) =>
      replyOf({ ...(await prepare(call)), path, live }, call.body.stream === true),
    )
  return [
    chat('/openai/v1/chat/completions'),
    { ...chat(SHARED_PATH), claims: hasBoth },
    get('/openai/v1/models', 'List the served models', ({ models }) =>
      json({
        object: 'list',
        data: models.list().map(({ id, created }) => ({ id, object: 'model', created, owned_by: 'rwkv_lightning' })),
      }),
    ),
  ]
}

function openAiBody(limits: RequestLimits) {
  const { max_completion_tokens, stream_options } = chatBody(limits).properties
  return Type.Object({
    ...lightningFields(limits),
    messages: MaybeMessages(limits),
    contents: Maybe(Contents(limits)),
    ...sessionFields(),
    system: Maybe(Type.String()),
    max_completion_tokens,
    stream_options,
    enable_think: Maybe(Type.Boolean()),
    use_prefix_cache: Maybe(Type.Boolean()),
  })
}

type OpenAiBody = Static<ReturnType<typeof openAiBody>>

function hasBoth(body: unknown): boolean {
  if (typeof body !== 'object' || body === null) return false
  const { contents, messages } = body as { contents?: unknown; messages?: unknown }
  return filled(contents) && filled(messages)
}

async function prepare(call: Call<OpenAiBody>): Promise<Chat> {
  const { body, limits, signal, tenant } = call
  const turns = turnsOf(body)
  const model = modelOf(call)
  const limited = { ...body, max_tokens: oneMaxTokens(body, limits) }
  const settings = settingsOf(limited, OPENAI_ROUTE, model, limits, CHAT_STOPS)
  // Sessions do not use the prefix cache.
  const session = sessionUse(body)
  const cache = body.use_prefix_cache === false && session === null ? ('no-store' as const) : settings.cache
  const think = body.enable_think === true ? 'open' : 'done'
  const id = `chatcmpl-${call.id}`
  const rendered = { turns, tail: chatTail(think), layout: CHAT_LAYOUT }
  const prompt = await encodeChat(rendered, model, session, 'messages', signal)
  return {
    model,
    request: { id, tenant, ...settings, cache, ...prompt },
    form: plainForm(think),
    chunkTokens: body.chunk_size ?? OPENAI_ROUTE.chunkSize,
    includeUsage: body.stream_options?.include_usage === true,
    created: call.now,
    signal,
    name: body.request_id ?? undefined,
  }
}

/** All that the system says comes first, as one turn; what `contents` asks comes last. */
function turnsOf({ messages, contents, system }: OpenAiBody): Turn[] {
  const turns = toTurns(messages ?? [])
  const [asked, ...more] = contents ?? []
  if (more.length > 0)
    throw invalid('contents', 'this route answers one question; send a batch to /v1/chat/completions, without messages')
  if (present(asked)) turns.push({ role: 'user', content: asked })
  if (turns.length === 0) throw invalid('messages', 'Empty prompt')
  const said = turns.filter(({ role }) => role === 'system').map(({ content }) => content)
  if (present(system)) said.push(system)
  const rest = turns.filter(({ role }) => role !== 'system')
  return said.length === 0 ? rest : [{ role: 'system', content: said.join('\n') }, ...rest]
}
