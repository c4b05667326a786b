/** Guesses of a draft model: what it reads and draws, and that answers are the same as without it. */
import { expect, test } from 'vitest'
import { Draft } from '../../src/engine/speculation/draft.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { loadEngine } from '../../src/host/load.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { tinyModel, tinyRunner } from '../helpers/runner.ts'
import { draftOver, FaultyRunner } from './guesses.ts'
import { Collected, drain, engineOver, LOOPS, type Loop, promptOf, requestOf, SAMPLING, soloAnswer, V } from './kit.ts'

const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7), 32) }
const NO_STOP = { strings: [], tokens: [], ignoreEos: true }
const NEVER = Number.POSITIVE_INFINITY

function setUp(faultEvery: number, loop: Loop = 'plain', stepTokens = 24, isTimed = false) {
  const numSlots = 8
  const runner = new FakeRunner({
    numSlots,
    maxTokens: 64,
    numSpares: 4,
    maxSamples: numSlots + 28,
    maxLogits: numSlots + 28,
    vocabSize: V,
  })
  const draft = new FaultyRunner(faultEvery, 6, stepTokens)
  // Of a step of one token; a draft's take a third of one.
  let thirds = 0
  runner.onStep = (rows) => {
    thirds += 3 + rows.filter(({ guesses }) => guesses !== undefined).length
  }
  draft.onStep = () => {
    thirds++
  }
  const now = () => thirds
  const limits = isTimed ? { proposers: [draftOver(draft, now)], now } : { proposers: [draftOver(draft)] }
  const engine = engineOver(runner, limits, null, loop)
  return { runner, draft, engine }
}

const request = (id: string, more: object = {}) => requestOf({ id, prompt: promptOf(20), maxTokens: 40, ...more })

test.each(LOOPS)('a model that drafts for itself is always right: %s', (loop) => {
  for (const temperature of [0, 1]) {
    const { engine, draft } = setUp(NEVER, loop)
    const asked = request('a', { sampling: { ...SAMPLING, temperature } })
    engine.submit(asked)
    const collected = drain(engine)
    expect(collected.answer('a')).toEqual(soloAnswer(asked))
    const { steps, guessedTokens, acceptedTokens, draftGuessed, draftAccepted } = engine.stats
    expect([draftGuessed, draftAccepted]).toEqual([guessedTokens, acceptedTokens])
    expect(acceptedTokens).toBeGreaterThan(20)
    expect(steps).toBeLessThan(20)
    const finish = collected.of('a').find((event) => event.type === 'finish')
    const rejected = guessedTokens - acceptedTokens
    expect(finish).toMatchObject({ guesses: { draft: { accepted: acceptedTokens, rejected } } })
    // If all guesses were right, it continues from the state that ran ahead.
    const longest = draft.log.slice(1).map(({ tokens }) => tokens)
    expect(Math.max(...longest)).toBeLessThanOrEqual(2)
    engine.dispose()
  }
})

test.each(LOOPS)('answers, choices and other requests with a draft that is often wrong: %s', (loop) => {
  const { engine, draft } = setUp(4, loop)
  const requests = Array.from({ length: 12 }, (_, i) =>
    request(`r${i}`, {
      prompt: promptOf(1 + 7 * i, i % 3),
      n: 1 + (i % 3),
      maxTokens: 30 + i,
      sampling: { ...SAMPLING, temperature: i % 2, seed: BigInt(i), presencePenalty: i % 4 === 3 ? 1 : 0 },
      stop: { strings: i % 4 === 0 ? ['ab'] : [], tokens: [i], ignoreEos: false },
    }),
  )
  const collected = new Collected()
  for (const one of requests) {
    engine.submit(one)
    engine.submit({ ...one, id: `gone ${one.id}`, maxTokens: 500 })
    for (let i = 0; i < 4; i++) collected.add(engine.step())
    engine.cancel(`gone ${one.id}`)
    for (let i = 0; i < 20; i++) collected.add(engine.step())
  }
  drain(engine, collected)
  for (const one of requests)
    for (let index = 0; index < one.n; index++) expect(collected.answer(one.id, index)).toEqual(soloAnswer(one, index))
  const { draftGuessed, draftAccepted } = engine.stats
  expect(draftAccepted).toBeGreaterThan(20)
  expect(draftGuessed - draftAccepted).toBeGreaterThan(20)
  expect(draft.log.some(({ rows }) => rows > 1)).toBe(true)
  engine.dispose()
})

test('with slots for it, a draft that was wrong goes on from its last right token', () => {
  const { runner } = setUp(NEVER)
  const draft = new FaultyRunner(4, 17, 24)
  const engine = engineOver(runner, { proposers: [new Draft(draft, 1)] }, null, 'plain')
  for (const prompt of [promptOf(9), promptOf(12)]) {
    const asked = request('a', { prompt, maxTokens: 90 })
    engine.submit(asked)
    expect(drain(engine).answer('a')).toEqual(soloAnswer(asked))
  }
  const { draftGuessed, draftAccepted } = engine.stats
  expect(draftAccepted).toBeGreaterThan(60)
  expect(draftGuessed - draftAccepted).toBeGreaterThan(10)
  // Of each answer's draft the first step reads the prompt.
  const reads = draft.log.map(({ tokens }) => tokens).sort((a, b) => b - a)
  expect(reads[2]).toBeLessThanOrEqual(2)
  engine.dispose()
})

test('only the last tokens of a long text are read; a continued text is read from where it stopped', () => {
  const { engine, draft } = setUp(NEVER, 'plain', 256)
  const long = request('long', { prompt: promptOf(2000), maxTokens: 20 })
  engine.submit(long)
  const answer = drain(engine).answer('long')!
  expect(answer).toEqual(soloAnswer(long))
  const readFirst = draft.log.reduce((sum, { tokens }) => sum + tokens, 0)
  expect(readFirst).toBeGreaterThan(500)
  expect(readFirst).toBeLessThan(600)
  const next = Int32Array.from([...long.prompt, ...answer.tokens, 3, 4, 5])
  const turn = request('turn', { prompt: next, maxTokens: 20 })
  engine.submit(turn)
  expect(drain(engine).answer('turn')).toEqual(soloAnswer(turn))
  const readNext = draft.log.reduce((sum, { tokens }) => sum + tokens, 0) - readFirst
  expect(readNext).toBeLessThan(60)
  engine.dispose()
})

test('more answers than lanes: those without a lane do not wait, and get one when another ends', () => {
  const { engine, draft } = setUp(NEVER)
  // The draft model has slots for three answers.
  const requests = Array.from({ length: 8 }, (_, i) =>
    request(`r${i}`, { prompt: promptOf(5, i), maxTokens: 20 + 10 * i }),
  )
  for (const one of requests) engine.submit(one)
  const collected = drain(engine)
  for (const one of requests) expect(collected.answer(one.id)).toEqual(soloAnswer(one))
  expect(Math.max(...draft.log.map(({ rows }) => rows))).toBeLessThanOrEqual(3)
  expect(engine.stats.draftAccepted).toBeGreaterThan(20)
  engine.dispose()
})

test('a draft with logits that are not finite fails no answer', () => {
  const { engine, draft } = setUp(NEVER)
  for (let slot = 0; slot < 6; slot++) draft.notFinite.add(slot)
  engine.submit(request('a'))
  expect(drain(engine).answer('a')).toEqual(soloAnswer(request('a')))
  expect(engine.stats.draftGuessed).toBe(0)
  engine.submit(request('b'))
  draft.notFinite.clear()
  expect(drain(engine).answer('b')).toEqual(soloAnswer(request('b')))
  expect(engine.stats.draftAccepted).toBeGreaterThan(10)
  engine.dispose()
})

/** What can be drawn after some tokens, best first, with their relative probabilities. */
type After = (...tokens: number[]) => { readonly token: number; readonly share: number }[]

test('on real kernels the distribution of tokens is the same as without a draft', () => {
  const [NUM_TRIALS, CHOICES] = [2000, 4]
  const prompt = promptOf(9)
  const ask = { id: 't', cache: 'no-store' as const }
  const make = () => tinyRunner('cpu', { slots: 4, maxTokens: 64, speculate: 'lookup' })
  // With another precision than the model, so it is often right, and often not.
  const draft = tinyRunner('cpu', { slots: 4, maxTokens: 64, quant: 'q4' })
  const engine = engineOver(make(), { proposers: [draftOver(draft)] }, null, 'plain', tokenBytes)
  const after: After = (...tokens) => {
    const sampling = { ...SAMPLING, temperature: 0 }
    const own = { prompt: Int32Array.from([...prompt, ...tokens]), maxTokens: 1, sampling }
    engine.submit(requestOf({ ...ask, ...own, logprobs: CHOICES }))
    const text = drain(engine)
      .of('t')
      .find((event) => event.type === 'text')
    const top = text?.type === 'text' ? text.logprobs![0]!.top : []
    const total = top.reduce((sum, { logprob }) => sum + Math.exp(logprob), 0)
    return top.map(({ token, logprob }) => ({ token, share: Math.exp(logprob) / total }))
  }
  const answers = Array.from({ length: NUM_TRIALS }, (_, trial) => {
    const sampling = { ...SAMPLING, seed: BigInt(trial), temperature: 1, topK: CHOICES }
    engine.submit(requestOf({ ...ask, prompt, maxTokens: 3, sampling }))
    return drain(engine).answer('t')!.tokens
  })
  const [first] = after()
  const [second] = after(first!.token)
  const given = [[], [first!.token], [first!.token, second!.token]]
  for (const begin of given) {
    const next = answers
      .filter((tokens) => begin.every((token, i) => tokens[i] === token))
      .map((tokens) => tokens[begin.length])
    expect(next.length).toBeGreaterThan(100)
    const chiSquare = after(...begin).reduce((sum, { token, share }) => {
      const expected = next.length * share
      return sum + (next.filter((one) => one === token).length - expected) ** 2 / expected
    }, 0)
    // With 3 degrees of freedom, one in 10,000 exceeds this; the seeds are fixed.
    expect(chiSquare).toBeLessThan(21.1)
  }
  const { draftGuessed, draftAccepted } = engine.stats
  expect(draftAccepted).toBeGreaterThan(NUM_TRIALS / 10)
  expect(draftGuessed - draftAccepted).toBeGreaterThan(NUM_TRIALS / 10)
  engine.dispose()
  draft.dispose()
})

test('if guesses of a draft model did not pay, the next answer starts without', () => {
  const { engine, draft } = setUp(1, 'plain', 24, true)
  const requests = Array.from({ length: 4 }, (_, i) =>
    request(`r${i}`, { prompt: promptOf(9, i), maxTokens: 150, stop: NO_STOP }),
  )
  const numGuessed = requests.map((one) => {
    const before = engine.stats.draftGuessed
    engine.submit(one)
    expect(drain(engine).answer(one.id)).toEqual(soloAnswer(one))
    return engine.stats.draftGuessed - before
  })
  expect(engine.stats.draftAccepted).toBe(0)
  expect(numGuessed[0]).toBeGreaterThan(2)
  for (const count of numGuessed.slice(1)) expect(count).toBeLessThan(5)
  expect(draft.log.length).toBeGreaterThan(0)
  engine.dispose()
})

test('the demo model as its own draft: the same answers; a model with another vocabulary is refused', async () => {
  const choice = { model: DEMO_MODEL, device: 'cpu', slots: 2, threads: 1 } as const
  const outcomes = await Promise.all(
    [undefined, DEMO_MODEL].map(async (draft) => {
      const { engine, tokenizer } = await loadEngine({ ...choice, draft, quant: 'int8' })
      const prompt = Int32Array.from(tokenizer.encode('User: Tell me a story.\n\nAssistant:'))
      const asked = [0, 1].map((temperature) =>
        requestOf({ id: `t${temperature}`, prompt, maxTokens: 60, sampling: { ...SAMPLING, temperature } }),
      )
      for (const one of asked) engine.submit(one)
      const collected = drain(engine)
      const { stats } = engine
      await engine.close()
      return { answers: asked.map(({ id }) => collected.answer(id)), stats }
    }),
  )
  const [off, drafted] = outcomes
  expect(drafted!.answers).toEqual(off!.answers)
  const { draftGuessed, draftAccepted } = drafted!.stats
  expect(draftAccepted).toBeGreaterThan(2)
  // The same weights and random numbers give the same draws.
  expect(draftAccepted).toBe(draftGuessed)
  const wrong = loadEngine({ ...choice, draft: tinyModel() })
  await expect(wrong).rejects.toThrow('--draft: the draft model has 512 tokens, and the model 2688')
})
