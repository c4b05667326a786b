/** The library with the demo model: the statements of docs/library.md, and its types as in docs/dev/library.d.ts. */
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Llm, load, type ReplyPiece } from '../../src/index.ts'

const ROOT = join(import.meta.dirname, '../..')
const GREEDY = { temperature: 0, maxTokens: 64 }
const CITY = {
  type: 'object',
  properties: { city: { enum: ['Paris', 'Rome'] } },
  required: ['city'],
  additionalProperties: false,
} as const

let llm: Llm
beforeAll(async () => {
  llm = await load({ model: 'demo', slots: 8, embeddings: 'mean' })
})
afterAll(() => llm.close())

test('a chat arrives in pieces that add up to the answer', async () => {
  const pieces: ReplyPiece[] = []
  for await (const piece of llm.chat('What is the capital of France?', GREEDY)) pieces.push(piece)
  expect(pieces.length).toBeGreaterThan(1)
  const text = pieces.map((piece) => (piece.type === 'text' ? piece.text : '')).join('')
  const whole = await llm.answer([{ role: 'user', content: 'What is the capital of France?' }], GREEDY)
  expect(whole).toMatchObject({ text: text.trim(), reason: 'stop', calls: [], turn: null })
  expect(whole.text).toContain('Paris')
})

test('an answer ends when it is aborted, or when nobody reads it any more', async () => {
  const abort = new AbortController()
  const endless = llm.chat('Hello', { signal: abort.signal, maxTokens: 4096, stop: [] })
  await expect(
    (async () => {
      for await (const _ of endless) abort.abort()
    })(),
  ).rejects.toMatchObject({ code: 'aborted' })
  for await (const _ of llm.generate('Once upon a time', { maxTokens: 4096 })) break
  await expect.poll(() => llm.client.stats.running).toBe(0)
})

test('a session reads only what is new, can be forked, and exported as a file', async () => {
  const ask = (session: string, question: string) => llm.answer(question, { ...GREEDY, session })
  expect(await ask('trip', 'What is the capital of France?')).toMatchObject({ turn: 1 })
  const second = await ask('trip', 'What is the capital of Japan?')
  expect(second.text).toContain('Tokyo')
  expect(second.cachedTokens).toBeGreaterThan(0)
  await llm.sessions.fork('trip', 'other', 1)
  expect((await llm.sessions.get('other')).head).toBe(1)
  await llm.sessions.import('copy', await llm.sessions.export('trip'))
  expect(await ask('copy', 'What is the capital of Italy?')).toMatchObject({ turn: 2 })
  await llm.sessions.rewind('trip', 1)
  expect(await ask('trip', 'What is the capital of Japan?')).toMatchObject({ text: second.text })
  await llm.sessions.delete('trip')
  const ids = (await llm.sessions.list()).map(({ id }) => id)
  expect(ids.sort()).toEqual(['copy', 'other'])
})

test('a tool is called, and a schema is enforced', async () => {
  const tools = [{ name: 'weather', description: 'The weather of a city', parameters: CITY }]
  const asked = 'How is the weather in Paris?'
  const { calls, reason } = await llm.answer(asked, { ...GREEDY, tools, toolChoice: 'required' })
  expect(reason).toBe('calls')
  expect(calls).toHaveLength(1)
  expect(JSON.parse(calls[0]!.arguments)).toEqual({ city: 'Paris' })
  const { text } = await llm.answer(asked, { ...GREEDY, schema: CITY })
  expect(['Paris', 'Rome']).toContain(JSON.parse(text).city)
  const nonsense = { type: 'nothing that there is' }
  await expect(llm.answer(asked, { schema: nonsense })).rejects.toMatchObject({ param: 'schema' })
})

test('a stop may be one text', async () => {
  const { text } = await llm.answer('What is the capital of France?', { ...GREEDY, stop: 'France' })
  expect(text).toBe('The capital of')
})

/** As JavaScript without types gives them. */
const REFUSED: readonly (readonly [messages: unknown, options: object, message: RegExp])[] = [
  [[null], {}, /^messages: expected a text, or a list of which each is an object$/],
  ['Hi', { stop: [5] }, /^stop: expected a string, or a list of strings$/],
  ['Hi', { topK: 0.7 }, /^topK: expected a whole number/],
  ['Hi', { temprature: 0 }, /^temprature: there is no such option; did you mean temperature\?$/],
  ['Hi', { temperature: -1 }, /^temperature: expected a number from 0 to 1000$/],
  ['Hi', { stop: 5 }, /^stop/],
  ['Hi', { seed: -1 }, /^seed/],
  ['Hi', { toolChoice: 'required' }, /no tools/],
  ['Hi', { tools: [{ name: 'a' }] }, /^tools\[0\]\.description: missing/],
  ['Hi', { tools: [{ name: 'a', description: '', parameters: {}, strict: true }] }, /^tools\[0\]\.strict/],
  ['Hi', { tools: ['', ''].map(() => ({ name: 'a', description: '', parameters: {} })) }, /two of them/],
  ['Hi', { tools: [{ name: 'a', description: '', parameters: {} }], toolChoice: { name: 'b' } }, /^toolChoice/],
  [[], {}, /^messages: must have/],
  [[{ role: 'bot', content: 'Hi' }], {}, /^messages\[0\]\.role/],
  [[{ role: 'user' }], {}, /^messages\[0\]\.content/],
]
test.each(REFUSED)('%j with %j is refused', async (messages, options, message) => {
  const asked = llm.answer(messages as string, options)
  await expect(asked).rejects.toMatchObject({ code: 'invalid_request', message: expect.stringMatching(message) })
})

test.each([undefined, null, 5, []])('load(%j) is refused', async (choice) => {
  await expect(load(choice as unknown as string)).rejects.toThrow('options: expected an object')
})

test.each([
  [{ quants: 'int8' }, /did you mean quant\?/],
  [{ lora: 'x.pth' }, /^lora: there is no such option/],
  [{ quant: 'q9' }, /^quant: expected one of file, /],
  [{ device: 'gpu' }, /^device: expected one of auto, /],
  [{ slots: 0 }, /^slots: expected a whole number of at least 1/],
  [{ adapters: [{ path: 'x', file: 'x' }] }, /^adapters\[0\]\.file/],
  [{ adapters: [{ scale: 1 }] }, /^adapters\[0\]\.path: missing/],
  [{ adapters: ['x.pth'] }, /^adapters: expected a list of which each is an object$/],
])('a model with %j is not loaded', async (choice, message) => {
  await expect(load({ model: 'demo', ...choice } as Parameters<typeof load>[0])).rejects.toThrow(message)
})

test('texts become vectors of length 1, equal texts the same one', async () => {
  const [one, same, other] = await llm.embed(['Paris', 'Paris', 'Tokyo'])
  expect(one!.reduce((sum, value) => sum + value * value, 0)).toBeCloseTo(1, 5)
  expect(same).toEqual(one)
  expect(other).not.toEqual(one)
})

/** `npx tsc -p . && npx vitest run test/e2e/library.test.ts -u` updates it. */
test('the types are those of docs/dev/library.d.ts', async () => {
  await expect(report()).toMatchFileSnapshot(join(ROOT, 'docs/dev/library.d.ts'))
})

/** The library's declarations, and those of the types that it exports. */
function report(): string {
  const index = readFileSync(join(ROOT, 'dist/index.d.ts'), 'utf8')
  const own = index.slice(index.indexOf('\n/**', index.lastIndexOf('import ')))
  const passed = [...index.matchAll(/export type \{ ([\w, ]+) \} from '(.+?)';/g)].flatMap(([, names, from]) => {
    const path = join(
      ROOT,
      'dist',
      dirname(from!),
      from!
        .split('/')
        .pop()!
        .replace(/\.[jt]s$/, '.d.ts'),
    )
    const text = readFileSync(path, 'utf8')
    return names!.split(', ').map((name) => declarationOf(text, name))
  })
  const head = '// The types of the library, written by test/e2e/library.test.ts.\n'
  return `${[head, ...passed, own.trim()].join('\n')}\n`
}

function declarationOf(text: string, name: string): string {
  const found = new RegExp(
    `(?:^/\\*\\*(?:(?!\\*/)[\\s\\S])*\\*/\\n)?^export (?:interface ${name}\\b[\\s\\S]*?^\\}|type ${name}\\b[\\s\\S]*?;$(?!\\n    ))`,
    'm',
  ).exec(text)
  if (found === null) throw new Error(`no declaration of ${name}`)
  return found[0]
}
