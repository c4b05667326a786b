/**
 * Responses that were stored: each is a session whose last turn it is. What it said and was asked is read back from the
 * session's tokens, what its request said besides from the turn's note; all is gone when the session is.
 */
import type { SessionInfo } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import type { ReplyPiece } from '../chat/reply.ts'
import { ToolSplitter } from '../chat/tool-splitter.ts'
import { readToolList } from '../chat/tool-text.ts'
import { notRead } from '../fields.ts'
import type { ModelRegistry, ServedModel } from '../models.ts'
import { type Call, del, get, inCluster, json, type Route } from '../route.ts'
import { readTurn, spansTo, type TranscriptMessage } from '../sessions/transcript.ts'
import type { WireItem } from './body.ts'
import { echoIn } from './echo.ts'
import type { FindItem } from './input.ts'
import { Output, responseOfItem } from './output.ts'

type Owner = Pick<Call, 'models' | 'tenant'>

interface Stored {
  readonly model: ServedModel
  readonly session: SessionInfo
  readonly input: readonly TranscriptMessage[]
  readonly output: readonly object[]
}

export function storedRoutes(): Route[] {
  const path = '/v1/responses/:id'
  return [
    get(path, 'A stored response, as its session tells it', async (call) => {
      if (call.query.stream === 'true') throw notRead('stream', 'read the response whole')
      const { model, session, output } = await stored(call, call.params.id!)
      return json({
        id: session.id,
        object: 'response',
        created_at: Math.floor(session.createdAt / 1000),
        model: model.id,
        ...echoIn(session.note),
        status: 'completed',
        error: null,
        incomplete_details: null,
        output,
        store: true,
      })
    }),
    get(`${path}/input_items`, 'What a stored response was asked', async (call) => {
      const { session, input } = await stored(call, call.params.id!)
      const data = withoutLists(input).map((message, i) => {
        const id = `${session.id.replace('resp_', 'in_')}_${i}`
        return { id, ...itemOf(message) }
      })
      const ids = data.map(({ id }) => id)
      const ends = { first_id: ids[0] ?? null, last_id: ids.at(-1) ?? null }
      return json({ object: 'list', data, ...ends, has_more: false })
    }),
    del(path, 'Delete a stored response', async (call) => {
      const id = call.params.id!
      const { model } = await find(call, id)
      await model.client.call('sessions.delete', { tenant: call.tenant, id })
      return json({ id, object: 'response', deleted: true })
    }),
  ].map(inCluster('every'))
}

/** Tools are no items: their list is a part of the system's text, or all of it. */
function withoutLists(input: readonly TranscriptMessage[]): TranscriptMessage[] {
  return input.flatMap((message) => {
    const list = message.role === 'system' ? readToolList(message.content) : null
    if (list === null) return [message]
    return list.content === '' ? [] : [{ ...message, content: list.content }]
  })
}

function itemOf({ role, content }: TranscriptMessage): object {
  const status = 'completed'
  if (role === 'tool') return { type: 'function_call_output', status, output: content }
  const part =
    role === 'assistant'
      ? { type: 'output_text', text: content, annotations: [] }
      : { type: 'input_text', text: content }
  return { type: 'message', role, status, content: [part] }
}

export function unknownResponse(param: string): SkeinError {
  const message = `${param}: there is no such response; those with "store": false, deleted and expired ones are not kept`
  return new SkeinError('not_found', message, { param })
}

/** It is a session of the model that answered, whichever that is. */
async function find({ models, tenant }: Owner, id: string, param = 'response_id') {
  for (const model of /^resp_[0-9a-f]{32}$/.test(id) ? ready(models) : []) {
    try {
      return { model, session: await model.client.call('sessions.get', { tenant, id }) }
    } catch (thrown) {
      if (!(thrown instanceof SkeinError) || thrown.code !== 'not_found') throw thrown
    }
  }
  throw unknownResponse(param)
}

function ready(models: ModelRegistry): ServedModel[] {
  return models.list().flatMap(({ id, client }) => (client === null ? [] : [models.get(id)]))
}

async function stored(owner: Owner, id: string, param?: string): Promise<Stored> {
  const { model, session } = await find(owner, id, param)
  const span = spansTo(session, session.head).at(-1)
  if (span === undefined) throw unknownResponse(param ?? 'response_id')
  const { turn, start, end } = span
  const ref = { tenant: owner.tenant, id, turn, start, end }
  const tokens = await model.client.call('sessions.tokens', ref)
  const messages = readTurn(model.tokenizer, tokens, false).messages ?? []
  const answer = messages.at(-1)
  return {
    model,
    session,
    input: messages.slice(0, -1),
    output: answer === undefined ? [] : Output.of(id, piecesOf(answer)),
  }
}

/** A turn of the template as the pieces that its answer came in. */
function piecesOf({ content, reasoning_content: thought }: TranscriptMessage): ReplyPiece[] {
  const names = [...content.matchAll(/"name"\s*:\s*"([^"\\]*)"/g)].map((match) => match[1]!)
  const splitter = new ToolSplitter(names, false)
  let call = -1
  const said = [...splitter.push(content), ...splitter.end()].map((piece): ReplyPiece => {
    if (piece.type === 'text') return piece
    if (piece.type === 'call') return { ...piece, call: ++call, id: '' }
    return { ...piece, call }
  })
  return thought === undefined ? said : [{ type: 'reasoning', text: thought }, ...said]
}

/** Items that a request refers to, from the responses that they are of. */
export function finder(owner: Owner): FindItem {
  const found = new Map<string, Promise<Stored>>()
  return async (id, param) => {
    // A thought is not part of the prompt.
    if (id.startsWith('rs_')) return { type: 'reasoning' }
    const response = responseOfItem(id)
    if (response === null) throw unknownResponse(param)
    const pending = found.get(response) ?? stored(owner, response, param)
    found.set(response, pending)
    // Items of an output have the fields of those of an input, and more.
    const items = (await pending).output as readonly WireItem[]
    const item = items.find((one) => one.id === id)
    if (item === undefined) throw unknownResponse(param)
    return item
  }
}
