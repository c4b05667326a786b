/**
 * The Responses API of OpenAI: items in and out, and streams of named events. A response is stored as a turn of a session
 * of its own, which the next request continues, unless `store` is false.
 */

import { SkeinError } from '../../errors.ts'
import { prepareChat } from '../chat/prepare.ts'
import { type ChoiceEnd, type LiveOptions, liveReply, type PreparedChat, type PromptRead } from '../chat/reply.ts'
import { onlyNew, toldBefore } from '../chat/told.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { renderOpenAiError } from '../openai/errors.ts'
import { present, toSampling, toStop } from '../openai/sampling.ts'
import { type Call, type Dialect, json, post, type Reply, type Route } from '../route.ts'
import { NAMED_SSE } from '../stream-form.ts'
import { checkBody, constraintOf, type ResponseBody, responseBody, thinkingFor, UNREAD } from './body.ts'
import { echoOf, noteOf } from './echo.ts'
import { conversationOf } from './input.ts'
import { Output, responseId } from './output.ts'
import { finder, storedRoutes, unknownResponse } from './stored.ts'

export function responsesDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'responses',
    about: 'OpenAI Responses',
    stream: NAMED_SSE,
    keyHeaders: ['api-key'],
    routes: [...createRoutes(limits, live), ...storedRoutes()],
    renderError: renderOpenAiError,
  }
}

const PATH = '/v1/responses'
const KEPT_SECONDS = 86_400

type ResponseCall = Call<ResponseBody>

function createRoutes(limits: RequestLimits, live: LiveCalls): Route[] {
  const body = responseBody(limits)
  const create = async (call: ResponseCall): Promise<Reply> => {
    checkBody(call.body, call)
    const chat = await prepare(call)
    const events = answerOf(call, chat, { live, path: PATH, signal: call.signal })
    if (call.body.stream === true) return { kind: 'events', events: streamed(call, events) }
    return json(await whole(events))
  }
  const count = async (call: ResponseCall) => {
    checkBody(call.body, call)
    const { request } = await prepare({ ...call, body: { ...call.body, store: false } })
    return json({ object: 'response.input_tokens', input_tokens: request.prompt.length })
  }
  return [
    post(PATH, 'Answer as the Responses API does', body, create, UNREAD),
    post(`${PATH}/input_tokens`, 'How many tokens the prompt has', body, count, UNREAD),
  ]
}

async function prepare(call: ResponseCall): Promise<PreparedChat> {
  const { body, limits, signal, tenant } = call
  const model = call.models.get(body.model)
  const id = responseId(call.id)
  const { temperature = null, top_p = null } = body
  const fields = { temperature, top_p }
  const before = body.previous_response_id ?? null
  // It goes on from a state, so there is a state to go on in; with `store: false` it is deleted afterwards.
  const isKept = body.store !== false || present(body.previous_response_id)
  const sampling = toSampling(fields, model)
  const whole = await conversationOf(body, finder(call))
  const earlier = await toldBefore(model, tenant, before)
  const { conversation, told } = onlyNew(whole, body.instructions || null, earlier)
  return await prepareChat(conversation, {
    id,
    maxTokens: body.max_output_tokens ?? limits.defaultChatTokens,
    sampling,
    stop: toStop(fields, [], model, limits),
    isGathered: body.stream !== true,
    tenant,
    model,
    thinking: thinkingFor(body),
    constraint: constraintOf(body),
    session: isKept
      ? {
          id,
          ifMissing: before === null ? 'create' : 'error',
          ifBusy: 'conflict',
          onCancel: 'drop',
          ttlSeconds: KEPT_SECONDS,
          note: noteOf(call, model.id, sampling, told),
        }
      : null,
    param: 'input',
    signal,
  })
}

type ResponseEvent = { readonly type: string; readonly response?: object }

async function whole(events: AsyncIterable<object>): Promise<object> {
  let response: object = {}
  for await (const event of events) response = (event as ResponseEvent).response ?? response // all are
  return response
}

/** After the first event an error is one, too. */
async function* streamed(call: ResponseCall, events: AsyncIterable<object>): AsyncGenerator<object> {
  let number = 0
  let response: object | null = null
  try {
    for await (const event of events) {
      response ??= (event as ResponseEvent).response ?? null // all are
      yield { ...event, sequence_number: number++ }
    }
  } catch (thrown) {
    if (response === null || call.signal.aborted) throw thrown
    const { code, message, param = null } = call.report(thrown)
    yield { type: 'error', code, message, param, sequence_number: number++ }
    const error = { code: 'server_error', message }
    const failed = { ...response, status: 'failed', error }
    yield { type: 'response.failed', response: failed, sequence_number: number }
  }
}

/** Where no session has room and nobody asked for one, the answer is not stored. */
async function* answerOf(call: ResponseCall, chat: PreparedChat, where: LiveOptions): AsyncGenerator<object> {
  const { store, previous_response_id: before } = call.body
  const mayDrop = !present(store) && !present(before)
  let hasBegun = false
  try {
    for await (const event of answer(call, chat, where)) {
      hasBegun = true
      yield event
    }
  } catch (thrown) {
    const isFull = thrown instanceof SkeinError && NO_ROOM.includes(thrown.code)
    if (!mayDrop || hasBegun || !isFull) throw thrown
    call.warn(`the response was not stored: ${thrown.message}`)
    yield* answer(call, unstored(chat), where)
  }
}

/** Of a session that cannot be kept: a quota is used up, or the disk is full. */
const NO_ROOM: readonly string[] = ['too_large', 'state_unavailable']

function unstored({ request, ...chat }: PreparedChat): PreparedChat {
  const { session: _session, promptAtBeginning, ...rest } = request
  return { ...chat, request: { ...rest, prompt: promptAtBeginning ?? rest.prompt } }
}

/** The events of the answer; the last one has all of it. */
async function* answer(call: ResponseCall, chat: PreparedChat, where: LiveOptions): AsyncGenerator<object> {
  const { body, tenant } = call
  const { model, request } = chat
  const output = new Output(request.id)
  const respond = (status: string, items: object[], rest: object) => ({
    id: request.id,
    object: 'response',
    ...echoOf(call, model.id, request.sampling),
    error: null,
    incomplete_details: null,
    store: request.session !== undefined && body.store !== false,
    status,
    output: items,
    ...rest,
  })
  let isWhole = false
  try {
    await goOnFrom(body.previous_response_id ?? null, call, chat)
    let read: PromptRead | null = null
    for await (const event of liveReply(chat, where)) {
      if (event.type === 'prompt') {
        read = event
        const response = respond('in_progress', [], { usage: null })
        yield { type: 'response.created', response }
        yield { type: 'response.in_progress', response }
      } else if (event.type === 'pieces') yield* output.add(event.pieces)
      else {
        const isCut = event.reason === 'length'
        const status = isCut ? 'incomplete' : 'completed'
        yield* output.add(event.pieces)
        yield* output.close(status)
        isWhole = true
        const response = respond(status, output.items(status), {
          ...(isCut ? { incomplete_details: { reason: 'max_output_tokens' } } : {}),
          usage: usageOf(read, event),
        })
        yield { type: `response.${status}`, response }
      }
    }
  } finally {
    const isLeft = request.session !== undefined && (!isWhole || body.store === false)
    if (isLeft) await model.client.call('sessions.delete', { tenant, id: request.id }).catch(() => {})
  }
}

/** The response before stays as it is: this one goes on in a copy of its session, which shares its state. */
async function goOnFrom(before: string | null, { tenant }: ResponseCall, { model, request }: PreparedChat) {
  if (before === null) return
  try {
    await model.client.call('sessions.fork', { tenant, id: before, newId: request.id })
  } catch (thrown) {
    const isUnknown = thrown instanceof SkeinError && thrown.code === 'not_found'
    throw isUnknown ? unknownResponse('previous_response_id') : thrown
  }
}

function usageOf(read: PromptRead | null, { completionTokens, reasoningTokens }: ChoiceEnd): object {
  const { promptTokens = 0, cachedTokens = 0 } = read ?? {}
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: cachedTokens },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: promptTokens + completionTokens,
  }
}
