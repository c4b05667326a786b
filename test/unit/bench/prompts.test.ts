import { expect, test } from 'vitest'
import { type FilePrompt, parsePromptFile, pickPrompts, randomPrompts } from '../../../src/bench/serve/prompts.ts'
import { seededRandom } from '../../../src/bench/serve/random.ts'

const unknown = async () => null
const numWords = (text: string) => text.split(' ').length

test('random prompts have the lengths asked for', async () => {
  const lengths = { inputTokens: 100, outputTokens: 40, rangeRatio: 1 }
  const prompts = await randomPrompts(5, lengths, seededRandom(1), unknown)
  expect(prompts.map(({ text }) => numWords(text))).toEqual([100, 100, 100, 100, 100])
  expect(prompts.map(({ maxTokens }) => maxTokens)).toEqual([40, 40, 40, 40, 40])
  expect(new Set(prompts.map(({ text }) => text)).size).toBe(5)
})

test('lengths range from a fraction of the maximum up to it', async () => {
  const lengths = { inputTokens: 100, outputTokens: 40, rangeRatio: 0.5 }
  const prompts = await randomPrompts(2000, lengths, seededRandom(1), unknown)
  const inputs = prompts.map(({ text }) => numWords(text))
  const outputs = prompts.map(({ maxTokens }) => maxTokens)
  expect([Math.min(...inputs), Math.max(...inputs)]).toEqual([50, 100])
  expect([Math.min(...outputs), Math.max(...outputs)]).toEqual([20, 40])
})

test('prompts have fewer words if the server has more tokens per word', async () => {
  const lengths = { inputTokens: 100, outputTokens: 1, rangeRatio: 1 }
  const twice = async (text: string) => 2 * numWords(text)
  const [prompt] = await randomPrompts(1, lengths, seededRandom(1), twice)
  expect(numWords(prompt!.text)).toBe(50)
})

const pair = (text: string, answer: string) => ({
  conversations: [
    { from: 'human', value: text },
    { from: 'gpt', value: answer },
    { from: 'human', value: 'more' },
  ],
})

test.each<[string, string, FilePrompt[]]>([
  ['a.txt', 'one\n\ntwo words\r\n', [{ text: 'one' }, { text: 'two words' }]],
  [
    'a.jsonl',
    '"one\\ntwo"\n{"prompt":"three"}\n{"prompt":"four","max_tokens":9}\n',
    [{ text: 'one\ntwo' }, { text: 'three' }, { text: 'four', maxTokens: 9 }],
  ],
  [
    'a.json',
    JSON.stringify([pair('hi', 'hello'), { conversations: [{ from: 'human', value: 'alone' }] }, pair('你好', '您好')]),
    [
      { text: 'hi', answer: 'hello' },
      { text: '你好', answer: '您好' },
    ],
  ],
])('%s', (name, content, expected) => {
  expect(parsePromptFile(name, content)).toEqual(expected)
})

test.each([
  ['a.txt', '\n \n', 'a.txt holds no prompt'],
  ['a.jsonl', '"one"\n{"prompts":"two"}', 'a.jsonl, line 2: expected'],
  ['a.jsonl', '{"prompt":"two","max_tokens":0}', 'a.jsonl, line 1: expected'],
  ['a.jsonl', 'not json', 'a.jsonl, line 1: expected'],
  ['a.json', '{"conversations":[]}', 'a.json: expected ShareGPT'],
  ['a.json', '[null]', 'a.json: expected ShareGPT'],
  ['a.json', '[', 'a.json: expected ShareGPT'],
  ['a.json', '[{"conversations":[{"value":"alone"}]}]', 'a.json holds no prompt'],
])('%s with %j is refused', (name, content, message) => {
  expect(() => parsePromptFile(name, content)).toThrow(message)
})

test('prompts of a file are shuffled, and repeated if there are too few', async () => {
  const file = Array.from({ length: 20 }, (_, i) => ({ text: `prompt ${i}` }))
  const lengths = { outputTokens: undefined, otherwise: 64 }
  const prompts = await pickPrompts(50, file, lengths, seededRandom(1), unknown)
  const texts = prompts.map(({ text }) => text)
  expect(texts.slice(0, 20)).not.toEqual(file.map(({ text }) => text))
  expect(new Set(texts.slice(0, 20)).size).toBe(20)
  expect(texts.slice(20, 40)).toEqual(texts.slice(0, 20))
  expect(prompts.every(({ maxTokens }) => maxTokens === 64)).toBe(true)
})

test('the length of an answer is the one asked for, else that of the file, else that of its answer there', async () => {
  const lengthOf = async (prompt: FilePrompt, outputTokens?: number) => {
    const lengths = { outputTokens, otherwise: 64 }
    const count = async (text: string) => text.length
    return (await pickPrompts(1, [prompt], lengths, seededRandom(1), count))[0]!.maxTokens
  }
  expect(await lengthOf({ text: 'a', answer: 'seven..', maxTokens: 9 }, 5)).toBe(5)
  expect(await lengthOf({ text: 'a', answer: 'seven..', maxTokens: 9 })).toBe(9)
  expect(await lengthOf({ text: 'a', answer: 'seven..' })).toBe(7)
  expect(await lengthOf({ text: 'a', answer: '' })).toBe(1)
  expect(await lengthOf({ text: 'a' })).toBe(64)
})
