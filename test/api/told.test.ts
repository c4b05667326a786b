/**
 * What a response that continues another, or a turn of a session, tells the model. Instructions and tools are sent with
 * each and not inherited, so the conversation must contain them once, like the prompt of a new one. With a scripted
 * engine whose sessions keep their notes.
 */
import { describe, expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { answer, FAKE_INFO, promptOf } from '../helpers/fake-engine.ts'
import { postTo, serve } from './kit.ts'

const CALL = '```json\n{"name":"weather","arguments":{"place":"Oslo"}}\n```'

const notes = new Map<string, string>()
const busy = new Set<string>()
const { app, engine } = serve(
  (request) => {
    if (request.session?.note !== undefined) notes.set(request.session.id, request.session.note)
    const hasResult = promptOf(request).endsWith('output:\n-5\n\nAssistant:')
    return answer(request, hasResult ? ' Cold.' : ` ${CALL}`)
  },
  {},
  { ...FAKE_INFO, maxPromptTokens: 100_000 },
)
engine.answerCall = (method, params) => {
  if (method !== 'sessions.get') return null
  const { id } = params as { id: string } // every call with a session has one
  const note = notes.get(id)
  if (note === undefined) throw new SkeinError('not_found', 'no such session')
  return { id, note, isBusy: busy.has(id) }
}

const tool = (name: string) => {
  const properties = { place: { type: 'string' } }
  return { type: 'function', name, parameters: { type: 'object', properties } }
}
const [WEATHER, SEND] = [tool('weather'), tool('send')]
const ALWAYS = { model: 'goose', instructions: 'Be kind.', tools: [WEATHER, SEND] }
const RESULT = { type: 'function_call_output', call_id: 'x', output: '-5' }

/** Sends a request; returns the id of the reply and the prompt of that turn. */
async function turn(body: object, before?: string) {
  const previous = before === undefined ? {} : { previous_response_id: before }
  const reply = await postTo(app, '/v1/responses', { ...ALWAYS, ...previous, ...body })
  expect(reply.statusCode).toBe(200)
  return { id: reply.json().id as string, prompt: promptOf(engine.requests.at(-1)!) }
}

test('three turns read the same as one new conversation with all of them', async () => {
  const first = await turn({ input: 'Weather?' })
  const second = await turn({ input: [RESULT] }, first.id)
  const third = await turn({ input: 'Thanks.' }, second.id)
  const call = { type: 'function_call', call_id: 'x', name: 'weather', arguments: '{"place":"Oslo"}' }
  const all = await turn({
    store: false,
    input: [
      { role: 'user', content: 'Weather?' },
      ...[call, RESULT],
      { role: 'assistant', content: 'Cold.' },
      { role: 'user', content: 'Thanks.' },
    ],
  })
  const read = `${first.prompt} ${CALL}${second.prompt} Cold.${third.prompt}`
  // The first turn of a session has a line break in front only if others came before it.
  expect(read.trimStart()).toBe(all.prompt)
  expect(read.match(/Tools:/g)).toHaveLength(1)
})

test('new tools and new instructions are told, each alone', async () => {
  const first = await turn({ input: 'Weather?' })
  const tools = await turn({ input: 'a', tools: [SEND] }, first.id)
  expect(tools.prompt).toMatch(/^\n\nSystem: Tools:\n\[\n\{"name":"send".*\n\]\n.*\n\nUser: a\n\n/)
  const words = await turn({ input: 'a', instructions: 'Be brief.' }, first.id)
  expect(words.prompt).toBe('\n\nSystem: Be brief.\n\nUser: a\n\nAssistant:')
  // The first tools again, after others: the latest list counts.
  expect((await turn({ input: 'b' }, tools.id)).prompt).toContain('"name":"weather"')
})

test('a turn without tools in between, and one with a required call, change nothing', async () => {
  const first = await turn({ input: 'Weather?' })
  const none = await turn({ input: 'a', tools: [], instructions: null }, first.id)
  expect(none.prompt).toBe('\n\nUser: a\n\nAssistant:')
  const off = await turn({ input: 'a', tool_choice: 'none' }, none.id)
  expect(off.prompt).toBe('\n\nUser: a\n\nAssistant:')
  const choice = { type: 'function', name: 'weather' }
  const named = await turn({ input: 'a', tool_choice: choice }, off.id)
  expect(named.prompt).toBe('\n\nUser: a\n\nAssistant: ```json')
  expect((await turn({ input: 'a' }, named.id)).prompt).toBe('\n\nUser: a\n\nAssistant:')
  // A list with one tool is not the whole list.
  const one = await turn({ input: 'Weather?', tool_choice: choice })
  expect((await turn({ input: 'a' }, one.id)).prompt).toContain('"name":"send"')
})

test('also if the note has no room for what the request said', async () => {
  const description = 'long '.repeat(8000)
  const long = { tools: [{ ...WEATHER, description }] }
  const first = await turn({ input: 'Weather?', ...long })
  expect(Buffer.byteLength(notes.get(first.id)!)).toBeLessThan(200)
  expect((await turn({ input: 'a', ...long }, first.id)).prompt).toBe('\n\nUser: a\n\nAssistant:')
})

describe('a session of chats', () => {
  const functions = [WEATHER, SEND].map(({ name, parameters }) => {
    return { type: 'function', function: { name, parameters } }
  })
  /** The prompt of a turn, and its prompt without an earlier turn. */
  async function chat(id: string, body: object = {}) {
    const messages = [{ role: 'user', content: 'a' }]
    const ask = { model: 'goose', messages, tools: functions, session_id: id, ...body }
    expect((await postTo(app, '/v1/chat/completions', ask)).statusCode).toBe(200)
    const { prompt, promptAtBeginning } = engine.requests.at(-1)!
    return [promptOf({ prompt }), promptOf({ prompt: promptAtBeginning! })]
  }
  const LIST = /^System: Tools:\n\[\n\{"name":"weather".*\n\{"name":"send"/
  const BARE = '\n\nUser: a\n\nAssistant:'

  test('tools that are sent with each turn are told once', async () => {
    const [first, alone] = await chat('s')
    expect(first).toBe(`\n\n${alone}`)
    expect(alone).toMatch(LIST)
    // If the session is gone by then, the turn is a first one.
    expect(await chat('s')).toEqual([BARE, alone])
    expect(await chat('s')).toEqual([BARE, alone])
    expect((await chat('other'))[0]).toMatch(/^\n\nSystem: Tools:/)
  })

  test('different tools are told, and those of which it is not known', async () => {
    const [, alone] = await chat('t')
    const [send] = await chat('t', { tools: [functions[1]] })
    expect(send).toContain('{"name":"send"')
    expect((await chat('t'))[0]).toBe(`\n\n${alone}`)
    expect((await chat('t'))[0]).toBe(BARE)
    // From an earlier turn; and while another is running, which may tell others.
    const from = { session_id: undefined, session: { id: 't', from: 1 } }
    expect((await chat('t', from))[0]).toBe(`\n\n${alone}`)
    busy.add('t')
    expect((await chat('t'))[0]).toBe(`\n\n${alone}`)
  })
})
