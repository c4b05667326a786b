/** Log-probabilities as JSON: the same wherever they are written, and off the event loop where they are many. */
import { afterEach, expect, test, vi } from 'vitest'
import { jsonAround, WRITTEN } from '../../src/api/json-around.ts'
import { chatLogprob, Scores } from '../../src/api/openai/logprobs.ts'
import type { TokenText } from '../../src/engine/messages.ts'
import { textOf } from '../../src/files/bytes.ts'
import { turns } from '../../src/threads/turns.ts'

afterEach(() => void vi.restoreAllMocks())

const texts = ['x', 'né', '中', '"', '\u0000'].map((text) => Buffer.from(text))
/** The bytes of 中 one by one. */
const torn = [...texts[2]!].map((byte) => Uint8Array.of(byte))
const tokens: TokenText[] = Array.from({ length: 6000 }, (_, i) => {
  const bytes = i % 10 < 3 ? torn[i % 10]! : texts[i % texts.length]!
  const top = Array.from({ length: 5 }, (_, k) => ({ token: k, logprob: k === 3 ? Number.NEGATIVE_INFINITY : -i - k }))
  return { token: i, logprob: -i / 7, bytes, top, topBytes: top.map((_, k) => texts[k]!) }
})

/** The longest piece of work on the event loop, counted in values that it wrote as JSON; and all of them. */
async function work(of: () => Promise<unknown>): Promise<{ longest: number; all: number }> {
  const write = vi.spyOn(JSON, 'stringify')
  const take = turns.do.bind(turns)
  let [longest, inTurns] = [0, 0]
  vi.spyOn(turns, 'do').mockImplementation((piece) =>
    take(() => {
      const before = write.mock.calls.length
      const result = piece()
      const count = write.mock.calls.length - before
      longest = Math.max(longest, count)
      inTurns += count
      return result
    }),
  )
  await of()
  const all = write.mock.calls.length
  vi.restoreAllMocks()
  return { longest: Math.max(longest, all - inTurns), all }
}

test('the columns of completions are the same at once, token by token and in a thread', async () => {
  const few = tokens.slice(0, 100)
  const pieces = new Scores('completion')
  const parts: Record<string, unknown[]>[] = []
  for (const token of few) parts.push(JSON.parse(await pieces.piece([token])))
  const kept = new Scores('completion')
  await kept.add(few)
  const columns = JSON.parse(textOf(await kept.json()))
  for (const name of ['tokens', 'token_logprobs', 'top_logprobs', 'text_offset'])
    expect(parts.flatMap((part) => part[name])).toEqual(columns[name])
  // Ten tokens of which the first three are one character.
  expect(columns.tokens.slice(0, 3)).toEqual(['bytes:\\xe4', 'bytes:\\xb8', 'bytes:\\xad'])
  expect(columns.text_offset.slice(0, 5)).toEqual([0, 1, 1, 1, 2])
  const many = new Scores('completion')
  await many.add(tokens)
  const all = JSON.parse(textOf(await many.json()))
  for (const name of ['tokens', 'token_logprobs', 'top_logprobs', 'text_offset'])
    expect(all[name].slice(0, 100)).toEqual(columns[name])
  expect(all.tokens).toHaveLength(6000)
  // What follows goes on where the thread ended.
  const { text_offset } = JSON.parse(await many.piece([tokens[3]!]))
  const last = new Scores('completion')
  await last.add([...tokens, tokens[3]!])
  expect(text_offset[0]).toBe(JSON.parse(textOf(await last.json())).text_offset[6000])
})

test('a prompt begins with a token that has none, and its text does not go on behind it', async () => {
  const scores = new Scores('completion')
  // A torn character at the end of the prompt, whose rest the answer begins with.
  await scores.add([null, { ...tokens[0]!, bytes: torn[0]! }], Buffer.from('é'), true)
  await scores.add([{ ...tokens[0]!, bytes: torn[1]! }])
  const { tokens: names, token_logprobs, top_logprobs, text_offset } = JSON.parse(textOf(await scores.json()))
  expect(names[0]).toBe('é')
  expect([token_logprobs[0], top_logprobs[0]]).toEqual([null, null])
  expect(text_offset).toEqual([0, 1, 2])
})

test('a name among the best is there once, and the drawn token is there in any case', async () => {
  const [x, quote] = [texts[0]!, texts[3]!]
  const top = [{ token: 0, logprob: -0.5 }]
  const drawn = (bytes: Uint8Array) => ({ token: 0, logprob: -0.5, bytes, top, topBytes: [quote] })
  const json = await new Scores('completion').piece([drawn(quote), drawn(x), { ...drawn(x), top: [], topBytes: [] }])
  expect(json).toContain('"top_logprobs":[{"\\"":-0.5},{"\\"":-0.5,"x":-0.5},{"x":-0.5}]')
})

test('entries of chats, with and without ids', async () => {
  for (const count of [3, 2000]) {
    const own = tokens.slice(0, count)
    const [chat, llama] = [new Scores('chat'), new Scores('llama')]
    for (const scores of [chat, llama]) await scores.add(own)
    expect(JSON.parse(textOf(await chat.json()))).toEqual(JSON.parse(JSON.stringify(own.map(chatLogprob))))
    const withIds = own.map((token) => ({ id: token.token, ...chatLogprob(token) }))
    expect(JSON.parse(textOf(await llama.json()))).toEqual(JSON.parse(JSON.stringify(withIds)))
  }
})

test('the event loop writes few, and none of many', async () => {
  const kept = new Scores('chat')
  const whole = await work(async () => {
    await kept.add(tokens)
    await kept.json()
  })
  expect(whole.all).toBe(0)
  const stream = await work(() => new Scores('chat').piece(tokens))
  expect(stream.all).toBe(0)
  // 170 with five alternatives each.
  const few = await work(() => new Scores('chat').piece(tokens.slice(0, 170)))
  expect(few).toEqual({ longest: 170, all: 170 })
})

test('many are packed a few at a time', async () => {
  let packed = 0
  vi.spyOn(turns, 'do').mockImplementation(async (piece) => {
    packed++
    return piece()
  })
  await new Scores('chat').add(tokens)
  expect(packed).toBe(Math.floor(6000 / 32))
})

test.each(['chat', 'completion'] as const)('the loop does not write a long piece of a %s', async (form) => {
  let written = 0
  vi.spyOn(turns, 'do').mockImplementation(async (piece) => {
    written++
    return piece()
  })
  await new Scores(form).piece(tokens)
  // It packs them, a few at a time.
  expect(written).toBe(Math.floor(6000 / 32))
  written = 0
  await new Scores(form).piece(tokens.slice(0, 20))
  expect(written).toBe(1)
})

test('what was written goes where its place is', () => {
  const [before, between, after] = jsonAround({ a: [WRITTEN, { b: WRITTEN }], c: '\u0000' })
  expect(`${before}1${between}{"x":2}${after}`).toBe('{"a":[1,{"b":{"x":2}}],"c":"\\u0000"}')
})
