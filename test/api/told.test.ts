/**
 * What a response that goes on from another is told: instructions and tools are sent with each and inherited by none, so its
 * prompt holds them once, as that of a new conversation would. Over a scripted engine whose sessions keep their notes.
 */
import { expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { answer, FAKE_INFO } from '../helpers/fake-engine.ts'
import { postTo, serve } from './kit.ts'

const CALL = '```json\n{"name":"weather","arguments":{"place":"Oslo"}}\n```'
const promptOf = ({ prompt }: { readonly prompt: Int32Array }) =>
  Buffer.from(prompt.map((token) => token - 1)).toString()

const notes = new Map<string, string>()
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
  const { id } = params as { id: string } // as every call of sessions has one
  const note = notes.get(id)
  if (note === undefined) throw new SkeinError('not_found', 'no such session')
  return { id, note }
}

const tool = (name: string) => {
  const properties = { place: { type: 'string' } }
  return { type: 'function', name, parameters: { type: 'object', properties } }
}
const [WEATHER, SEND] = [tool('weather'), tool('send')]
const ALWAYS = { model: 'goose', instructions: 'Be kind.', tools: [WEATHER, SEND] }
const RESULT = { type: 'function_call_output', call_id: 'x', output: '-5' }

/** Asks, and gives the reply's id with the prompt of that turn. */
async function turn(body: object, before?: string) {
  const previous = before === undefined ? {} : { previous_response_id: before }
  const reply = await postTo(app, '/v1/responses', { ...ALWAYS, ...previous, ...body })
  expect(reply.statusCode).toBe(200)
  return { id: reply.json().id as string, prompt: promptOf(engine.requests.at(-1)!) }
}

test('three turns read what one new conversation with all of them reads', async () => {
  const first = await turn({ input: 'Weather?' })
  const second = await turn({ input: [RESULT] }, first.id)
  const third = await turn({ input: 'Thanks.' }, second.id)
  const call = {
    type: 'function_call',
    call_id: 'x',
    name: 'weather',
    arguments: '{"place":"Oslo"}',
  }
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
  // A session's first turn has a line break in front only if others came before it.
  expect(read.trimStart()).toBe(all.prompt)
  expect(read.match(/Tools:/g)).toHaveLength(1)
})

test('what is new is told: other tools, other instructions, each alone', async () => {
  const first = await turn({ input: 'Weather?' })
  const tools = await turn({ input: 'a', tools: [SEND] }, first.id)
  expect(tools.prompt).toMatch(/^\n\nSystem: Tools:\n\[\n\{"name":"send".*\n\]\n.*\n\nUser: a\n\n/)
  const words = await turn({ input: 'a', instructions: 'Be brief.' }, first.id)
  expect(words.prompt).toBe('\n\nSystem: Be brief.\n\nUser: a\n\nAssistant:')
  // The first tools again, after others: the newest list counts.
  expect((await turn({ input: 'b' }, tools.id)).prompt).toContain('"name":"weather"')
})

test('a turn without tools between, and one that must call, change nothing of it', async () => {
  const first = await turn({ input: 'Weather?' })
  const none = await turn({ input: 'a', tools: [], instructions: null }, first.id)
  expect(none.prompt).toBe('\n\nUser: a\n\nAssistant:')
  const off = await turn({ input: 'a', tool_choice: 'none' }, none.id)
  expect(off.prompt).toBe('\n\nUser: a\n\nAssistant:')
  const choice = { type: 'function', name: 'weather' }
  const named = await turn({ input: 'a', tool_choice: choice }, off.id)
  expect(named.prompt).toBe('\n\nUser: a\n\nAssistant: ```json')
  expect((await turn({ input: 'a' }, named.id)).prompt).toBe('\n\nUser: a\n\nAssistant:')
  // A list of one is not the whole list.
  const one = await turn({ input: 'Weather?', tool_choice: choice })
  expect((await turn({ input: 'a' }, one.id)).prompt).toContain('"name":"send"')
})

test('also where the note has no room for what the request said', async () => {
  const description = 'long '.repeat(8000)
  const long = { tools: [{ ...WEATHER, description }] }
  const first = await turn({ input: 'Weather?', ...long })
  expect(Buffer.byteLength(notes.get(first.id)!)).toBeLessThan(200)
  expect((await turn({ input: 'a', ...long }, first.id)).prompt).toBe('\n\nUser: a\n\nAssistant:')
})
