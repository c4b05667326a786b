import { expect, test } from 'vitest'
import { FAKE_INFO } from '../helpers/fake-engine.ts'
import { postTo, serve } from './kit.ts'

const PATH = '/v1/embeddings'
const { app, engine } = serve(undefined, {}, { ...FAKE_INFO, embeddings: 'mean' })
const embed = async (body: object, path = PATH) => (await postTo(app, path, body)).json()

const length = (vector: readonly number[]) => Math.hypot(...vector)

test('one text', async () => {
  const reply = await embed({ model: 'goose', input: 'aab' })
  expect(reply).toMatchObject({
    object: 'list',
    model: 'goose',
    data: [{ object: 'embedding', index: 0 }],
    usage: { prompt_tokens: 3, total_tokens: 3 },
  })
  const [{ embedding }] = reply.data
  expect(embedding).toHaveLength(64)
  expect(length(embedding)).toBeCloseTo(1, 6)
  // Token b + 1 is byte b: two of 'a' (98), one of 'b' (99).
  expect(embedding[98 % 64] / embedding[99 % 64]).toBeCloseTo(2, 6)
  expect(engine.requests.at(-1)).toMatchObject({ embedding: 'mean', maxTokens: 0, n: 1, cache: 'no-store' })
})

test('texts and lists of tokens, in the order of the request', async () => {
  const texts = Array.from({ length: 40 }, (_, i) => 'ab'.repeat(i + 1))
  const tokens = texts.map((text) => [...Buffer.from(text)].map((byte) => byte + 1))
  const one = await embed({ input: tokens[0] })
  const all = await embed({ input: texts })
  expect(all.data.map(({ index }: { index: number }) => index)).toEqual([...texts.keys()])
  expect((await embed({ input: tokens })).data).toEqual(all.data)
  expect(one.data).toEqual([all.data[0]])
  expect(all.usage.prompt_tokens).toBe(40 * 41)
})

test('base64 encodes the same numbers', async () => {
  const plain = await embed({ input: 'abc', encoding_format: 'float' })
  const packed = await embed({ input: 'abc', encoding_format: 'base64' })
  const bytes = Buffer.from(packed.data[0].embedding, 'base64')
  const floats = Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readFloatLE(4 * i))
  expect(floats).toEqual(plain.data[0].embedding)
})

test('truncated vectors are scaled to length 1 again', async () => {
  const [whole, cut] = await Promise.all([embed({ input: 'abcdef' }), embed({ input: 'abcdef', dimensions: 37 })])
  const [a, b] = [whole.data[0].embedding, cut.data[0].embedding]
  expect(b).toHaveLength(37)
  expect(length(b)).toBeCloseTo(1, 6)
  expect(b[36] / b[35]).toBeCloseTo(a[36] / a[35], 5)
})

test.each([
  [{ input: '' }, 'input'],
  [{ input: [] }, 'input'],
  [{ input: ['a', ''] }, 'input'],
  [{ input: 'a', dimensions: 65 }, 'dimensions'],
  [{ input: 'a', dimensions: 0 }, 'dimensions'],
  [{ input: 'a', encoding_format: 'int8' }, 'encoding_format'],
  [{ input: 'a', truncate_prompt_tokens: 5 }, 'truncate_prompt_tokens'],
  [{ input: 'a', fast_mode: true }, 'fast_mode'],
  [{ input: [257] }, 'input'],
  [{}, 'input'],
])('%j is refused by name', async (body, param) => {
  const reply = await postTo(app, PATH, body)
  expect(reply.statusCode).toBe(400)
  expect(reply.json().error).toMatchObject({ param })
})

test('more texts than the limit are refused', async () => {
  const reply = await postTo(app, PATH, { input: Array.from({ length: 2049 }, () => 'a') })
  expect(reply.json().error.param).toBe('input')
})

test('documents ranked by similarity to the query', async () => {
  const body = { query: 'abc', documents: ['xyz', { text: 'abcd' }, 'cab'] }
  const reply = await embed(body, '/v1/rerank')
  expect(reply.usage).toEqual({ total_tokens: 3 + 3 + 4 + 3 })
  expect(reply.results.map(({ index }: { index: number }) => index)).toEqual([2, 1, 0])
  const [first, second, third] = reply.results
  expect(first.relevance_score).toBeCloseTo(1, 6)
  expect(second.relevance_score).toBeCloseTo(3 / Math.sqrt(12), 6)
  expect(second.document).toEqual({ text: 'abcd' })
  expect(third.relevance_score).toBe(0)
  for (const path of ['/rerank', '/v2/rerank'])
    expect(await embed({ ...body, top_n: 1, return_documents: false }, path)).toMatchObject({
      results: [{ index: 2, relevance_score: first.relevance_score }],
    })
  const none = await postTo(app, '/v1/rerank', { query: 'a', documents: [] })
  expect(none.json().error.param).toBe('documents')
})

test('Ollama: several texts, one, none', async () => {
  const [a, b] = (await embed({ input: ['a', 'b'] })).data.map(({ embedding }: { embedding: number[] }) => embedding)
  const both = await embed({ model: 'goose:latest', input: ['a', 'b'] }, '/api/embed')
  expect(both).toMatchObject({ model: 'goose:latest', embeddings: [a, b], prompt_eval_count: 2 })
  expect(await embed({ model: 'goose', input: '' }, '/api/embed')).toMatchObject({ embeddings: [] })
  expect(await embed({ model: 'goose', prompt: 'b' }, '/api/embeddings')).toEqual({ embedding: b })
  const long = 'x'.repeat(FAKE_INFO.maxPromptTokens + 1)
  expect(await embed({ model: 'goose', input: long }, '/api/embed')).toMatchObject({
    prompt_eval_count: FAKE_INFO.maxPromptTokens,
  })
  const whole = await postTo(app, '/api/embed', { model: 'goose', input: long, truncate: false })
  expect(whole.statusCode).toBe(413)
})

test('ai00 and RWKV-Runner use other paths', async () => {
  const wanted = await embed({ input: 'abc' })
  for (const path of ['/embeddings', '/api/oai/embeddings', '/api/oai/v1/embeddings'])
    expect(await embed({ input: 'abc' }, path), path).toEqual(wanted)
})

test('the model record describes them', async () => {
  const record = (await app.inject('/v1/models/goose')).json()
  expect(record.embeddings).toEqual({ of: 'final hidden state', pooling: 'mean', trained: false })
  const shown = await embed({ model: 'goose' }, '/api/show')
  expect(shown.capabilities).toContain('embedding')
})

test('if the operator has not enabled them, the refusal says how', async () => {
  const off = serve()
  const bodies = [
    [PATH, { input: 'a' }],
    ['/v1/rerank', { query: 'a', documents: ['b'] }],
    ['/api/embed', { model: 'goose', input: 'a' }],
    ['/api/embeddings', { model: 'goose', prompt: 'a' }],
  ] as const
  for (const [path, body] of bodies) {
    const reply = await postTo(off.app, path, body)
    expect(reply.statusCode, path).toBe(400)
    expect(reply.body).toContain('--embeddings mean')
  }
  expect(off.engine.requests).toEqual([])
  expect((await off.app.inject('/v1/models/goose')).json().embeddings).toBeNull()
})

test('`task` selects a head of the model; the text ends with the end token', async () => {
  const info = { ...FAKE_INFO, embeddings: 'last', embeddingTasks: ['retr', 'sts'] } as const
  const trained = serve(undefined, {}, info)
  const ask = (task?: string) => postTo(trained.app, PATH, { input: 'a', ...(task && { task }) })
  for (const [task, embeddingTask] of [
    [undefined, 'retr'],
    ['retrieval.query', 'retr'],
    ['text-matching', 'sts'],
  ]) {
    const reply = await ask(task)
    expect(reply.statusCode, reply.body).toBe(200)
    expect(reply.json().usage.prompt_tokens).toBe(2)
    const { prompt, ...request } = trained.engine.requests.at(-1)!
    expect([...prompt]).toEqual([98, 65_535])
    expect(request).toMatchObject({ embedding: 'last', embeddingTask })
  }
  expect((await ask('classification')).json().error).toMatchObject({ param: 'task' })
  expect((await ask('sorting')).statusCode).toBe(400)
  const model = (await trained.app.inject({ url: '/v1/models' })).json().data[0]
  expect(model.embeddings).toMatchObject({ trained: true, tasks: ['retr', 'sts'] })
  // A model without heads refuses it, because it would change the vectors.
  const plain = await postTo(app, PATH, { input: 'a', task: 'text-matching' })
  expect(plain.json().error).toMatchObject({ code: 'unsupported_parameter', param: 'task' })
})

test('the longest possible text also gets the end token', async () => {
  const most = 131_072
  const info = { ...FAKE_INFO, maxPromptTokens: most, embeddings: 'last' } as const
  const trained = serve(undefined, {}, { ...info, embeddingTasks: ['retr'] })
  // Token ids as a list: passed as arguments they would be too many for a call.
  const reply = await postTo(trained.app, PATH, { input: [new Array(most - 1).fill(98)] })
  expect(reply.statusCode, reply.body.slice(0, 200)).toBe(200)
  expect(trained.engine.requests.at(-1)!.prompt).toHaveLength(most)
})
