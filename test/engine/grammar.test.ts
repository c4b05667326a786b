/** Answers with grammars: the output is valid, and no other answer changes. */
import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import { ANY_OBJECT, type Constraint, oneOf } from '../../src/grammar/constraint.ts'
import { checkSchema } from '../../src/grammar/json-schema.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { directGrammars, JSON_V, jsonTokens } from '../helpers/grammars.ts'
import { schemas } from '../helpers/schemas.ts'
import { Collected, drain, engineOver, LOOPS, type Loop, requestOf, SAMPLING } from './kit.ts'

const grammars = await directGrammars()

function makeEngine(loop: Loop = 'plain') {
  const fake = new FakeRunner({ vocabSize: JSON_V, numSlots: 8, maxTokens: 32 })
  const limits = { poisonFreedSlots: true }
  return { fake, engine: engineOver(fake, limits, null, loop, jsonTokens, grammars) }
}

function constrained(constraint: Constraint, more: Partial<GenerateRequest> = {}): GenerateRequest {
  return requestOf({
    id: 'c',
    prompt: Int32Array.of(5, 6, 7),
    maxTokens: 3000,
    constraint,
    ...more,
  })
}

async function collect(requests: readonly GenerateRequest[], loop: Loop = 'plain') {
  const { engine, fake } = makeEngine(loop)
  for (const request of requests) engine.submit(request)
  // Waits for the grammars to compile.
  await new Promise(setImmediate)
  const collected = drain(engine)
  engine.dispose()
  return { collected, steps: fake.log.length }
}

async function textOf(constraint: Constraint, more: Partial<GenerateRequest> = {}) {
  const { collected } = await collect([constrained(constraint, more)])
  return collected.answer('c')
}

const CALL: Constraint = {
  type: 'sequence',
  parts: [
    { type: 'text', text: '```json\n{"name":"' },
    oneOf(['abc', 'ab', 'xyz']),
    { type: 'text', text: '","a":' },
    {
      type: 'schema',
      schema: {
        type: 'object',
        properties: { x: { type: 'integer' } },
        required: ['x'],
        additionalProperties: false,
      },
    },
    { type: 'text', text: '}' },
  ],
}
const CASES: readonly (readonly [string, Constraint, RegExp])[] = [
  ['a choice', oneOf(['true', 'tru', '世界', 'null']), /^(true|tru|世界|null)$/],
  ['a pattern', { type: 'regex', pattern: '[a-c]{2}-[0-9]{3}' }, /^[a-c]{2}-[0-9]{3}$/],
  ['rules', { type: 'grammar', ebnf: 'root ::= "a" root "b" | "x"' }, /^(a*)x(b*)$/],
  ['a call', CALL, /^```json\n\{"name":"(abc|ab|xyz)","a":\{ ?"x" ?: ?-?[0-9]+ ?\}\}$/],
  ['text first', { type: 'sequence', parts: [{ type: 'until', end: 'z' }, oneOf(['12'])] }, /^[^z]*z12$/s],
]

describe.each(LOOPS)('%s', (loop) => {
  test.each(CASES)('%s is produced, and other answers are as alone', async (_, constraint, shape) => {
    const neighbours = [1, 2, 3].map((i) =>
      requestOf({
        id: `n${i}`,
        prompt: Int32Array.from({ length: 9 * i }, (_, t) => 1 + (t % 40)),
        maxTokens: 20,
        sampling: { ...SAMPLING, seed: BigInt(i), presencePenalty: i % 2 },
      }),
    )
    const alone = (await collect(neighbours)).collected
    const request = constrained(constraint, { n: 3, sampling: { ...SAMPLING, seed: 5n } })
    const { collected } = await collect([neighbours[0]!, request, ...neighbours.slice(1)], loop)
    for (const index of [0, 1, 2]) {
      const answer = collected.answer('c', index)
      expect(answer?.text).toMatch(shape)
      expect([answer?.reason, answer?.matched]).toEqual(['stop', 0])
    }
    for (const { id } of neighbours) expect(collected.answer(id)).toEqual(alone.answer(id))
  })

  test('an answer is the same in every loop, also with log-probabilities and penalties', async () => {
    for (const more of [{}, { logprobs: 2 }, { sampling: { ...SAMPLING, presencePenalty: 1 } }]) {
      const request = constrained(ANY_OBJECT, more)
      const plain = (await collect([request])).collected
      const { collected } = await collect([request], loop)
      expect(collected.answer('c')).toEqual(plain.answer('c'))
      expect(() => JSON.parse(plain.answer('c')!.text)).not.toThrow()
      const texts = collected.events.filter((event) => event.type === 'text')
      if (request.logprobs !== null) for (const event of texts) expect(event.logprobs?.length).toBe(event.tokens.length)
    }
  })

  test('a turn of a session continues after all tokens that were fed, drawn or not', async () => {
    const { engine } = makeEngine(loop)
    engine.dispose()
    const fake = new FakeRunner({ vocabSize: JSON_V, numSlots: 8, maxTokens: 32 })
    const kept = engineOver(fake, {}, DEFAULT_STATE_OPTIONS, loop, jsonTokens, grammars)
    const session = { id: 's', ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' } as const
    const stop = { strings: ['xyz","a'], tokens: [], ignoreEos: false }
    const first = constrained(CALL, { session, stop, id: 'one' })
    const next = requestOf({ id: 'two', prompt: Int32Array.of(9, 9), maxTokens: 12, session })
    const collected = new Collected()
    for (const request of [first, next]) {
      kept.submit(request)
      await new Promise(setImmediate)
      drain(kept, collected)
    }
    kept.dispose()
    const { text, tokens } = collected.answer('one')!
    const isCut = !text.endsWith('}')
    const said = isCut ? [...jsonTokens.encode(text)] : tokens
    const whole = requestOf({
      ...next,
      id: 'w',
      session: undefined,
      prompt: Int32Array.of(5, 6, 7, ...said, 9, 9),
    })
    const alone = (await collect([whole])).collected
    if (!isCut) expect(collected.answer('two')).toEqual({ ...alone.answer('w')! })
    expect(collected.answer('two')?.completionTokens).toBe(alone.answer('w')?.completionTokens)
  })
})

/** No token but single ones spells the text between the choices, so where it is not taken as certain the same tokens are drawn. */
const FORM: Constraint = { type: 'regex', pattern: 'e33\\+[xyz]4\\+56[xyz]78[xyz]9é\\+33[xyz]4\\+5' }
const FORMS: readonly (readonly [string, Partial<GenerateRequest>])[] = [
  ['one answer', {}],
  ['forks', { n: 3 }],
  ['a length within certain text', { maxTokens: 6 }],
  ['a stop string that ends there', { stop: { strings: ['78x9', '78y9', '78z9'], tokens: [], ignoreEos: false } }],
  ['a stop string that begins there', { stop: { strings: ['+56x', '+56z'], tokens: [], ignoreEos: false }, n: 2 }],
]

describe.each(LOOPS)('certain text, %s', (loop) => {
  test.each(FORMS)('is what would be drawn, in fewer steps, and counts as guessed: %s', async (_, more) => {
    for (const seed of [1n, 2n, 3n]) {
      const sampling = { ...SAMPLING, temperature: 1, seed }
      const session =
        more.n === undefined ? ({ id: 's', ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' } as const) : undefined
      const next = requestOf({ id: 'd', prompt: Int32Array.of(9, 9), maxTokens: 9, sampling, session })
      const [certain, drawn] = await Promise.all(
        [null, 0].map(async (logprobs) => {
          const fake = new FakeRunner({ vocabSize: JSON_V, numSlots: 8, maxTokens: 32 })
          const engine = engineOver(fake, { poisonFreedSlots: true }, DEFAULT_STATE_OPTIONS, loop, jsonTokens, grammars)
          const collected = new Collected()
          const steps: number[] = []
          for (const request of [constrained(FORM, { sampling, session, ...more, logprobs }), next]) {
            engine.submit(request)
            await new Promise(setImmediate)
            drain(engine, collected)
            steps.push(fake.log.length)
          }
          const { stats } = engine
          engine.dispose()
          return { collected, steps: steps[0]!, stats }
        }),
      )
      for (let index = 0; index < (more.n ?? 1); index++) {
        const answer = certain!.collected.answer('c', index)!
        expect(answer.text).toMatch(/^e33/)
        expect(answer).toEqual(drawn!.collected.answer('c', index))
      }
      expect(certain!.collected.answer('d')).toEqual(drawn!.collected.answer('d'))
      expect(certain!.steps).toBeLessThan(drawn!.steps)
      const told = certain!.collected.of('c').flatMap((event) => (event.type === 'finish' ? [event.guesses] : []))
      const sum = told.reduce((all, guesses) => all + guesses!.grammar!.accepted, 0)
      expect(sum).toBeGreaterThan(2)
      expect(certain!.stats).toMatchObject({ grammarGuessed: sum, grammarAccepted: sum, acceptedTokens: sum })
      expect(drawn!.stats.grammarGuessed).toBe(0)
    }
  })

  test('a turn that was cancelled anywhere is continued from tokens of its answer', async () => {
    const sampling = { ...SAMPLING, temperature: 1, seed: 4n }
    const session = { id: 's', ifMissing: 'create', ifBusy: 'wait', onCancel: 'keep' } as const
    const first = constrained(FORM, { sampling, session })
    const next = requestOf({ id: 'd', prompt: Int32Array.of(9, 9), maxTokens: 9, sampling, session })
    const { tokens } = (await collect([{ ...first, session: undefined }])).collected.answer('c')!
    const after = async (said: readonly number[]) => {
      const prompt = Int32Array.of(5, 6, 7, ...said, 9, 9)
      return (await collect([{ ...next, prompt, session: undefined }])).collected.answer('d')!.tokens
    }
    const continued = await Promise.all(tokens.map((_, i) => after(tokens.slice(0, i + 1))))
    const heard = new Set<number>()
    for (let steps = 2; steps < 12; steps++) {
      const fake = new FakeRunner({ vocabSize: JSON_V, numSlots: 8, maxTokens: 32 })
      const engine = engineOver(fake, {}, DEFAULT_STATE_OPTIONS, loop, jsonTokens, grammars)
      engine.submit(first)
      await new Promise(setImmediate)
      const collected = new Collected()
      for (let i = 0; i < steps; i++) collected.add(engine.step())
      const said = collected.of('c').flatMap((event) => (event.type === 'text' ? event.tokens : []))
      if (collected.answer('c') !== null) break
      engine.cancel('c')
      engine.submit(next)
      drain(engine, collected)
      engine.dispose()
      const at = continued.findIndex((other) => `${other}` === `${collected.answer('d')?.tokens}`)
      expect(at + 1, `${steps} steps`).toBeGreaterThanOrEqual(said.length)
      heard.add(said.length)
    }
    expect(heard.size).toBeGreaterThan(3)
  })
})

test('forced text costs no step', async () => {
  const text = '```json\n{"name":"abc","abc":"xyz","null":[12,12,12]}'
  const { collected, steps } = await collect([constrained({ type: 'text', text })])
  const answer = collected.answer('c')!
  expect(answer.text).toBe(text)
  expect(answer.completionTokens).toBeGreaterThan(20)
  expect(steps).toBeLessThan(5)
})

test('with many answers a little forced text is fed one token per step on a device, and a lot at once', async () => {
  const most = async (text: string, loop: Loop) => {
    const fake = new FakeRunner({ vocabSize: JSON_V, numSlots: 64, maxTokens: 128 })
    const engine = engineOver(fake, {}, null, loop, jsonTokens, grammars)
    const stop = { strings: [], tokens: [], ignoreEos: true }
    for (let i = 0; i < 63; i++) {
      engine.submit(requestOf({ id: `n${i}`, prompt: Int32Array.of(5), maxTokens: 40, stop }))
    }
    engine.submit(constrained({ type: 'text', text }, { prompt: Int32Array.of(5) }))
    await new Promise(setImmediate)
    const collected = drain(engine)
    expect(collected.answer('c')).toMatchObject({ text, reason: 'stop' })
    // The step of the prompts has a token per row, too.
    return Math.max(...fake.log.map(({ rows, tokens }) => tokens - rows))
  }
  const [little, much] = ['{"abc":12}', '{"abc":"xyz","null":[12,12,12]}']
  expect(await most(little, 'overlapped')).toBe(0)
  expect(await most(much, 'overlapped')).toBeGreaterThan(7)
  expect(await most(little, 'plain')).toBeGreaterThan(1)
})

test('lengths, stop strings and bans apply within forced text', async () => {
  const constraint: Constraint = { type: 'text', text: '{"abc":"xyz","null":12}' }
  expect(await textOf(constraint, { maxTokens: 4 })).toMatchObject({
    reason: 'length',
    completionTokens: 4,
  })
  const stop = { strings: ['z","n'], tokens: [], ignoreEos: true }
  expect(await textOf(constraint, { stop })).toMatchObject({ text: '{"abc":"xy', matched: 'z","n' })
  const sampling = { ...SAMPLING, bannedTokens: [...jsonTokens.encode('true')] }
  expect((await textOf(oneOf(['true', '12']), { sampling }))?.text).not.toBe('')
  const all = Array.from({ length: JSON_V - 1 }, (_, id) => id + 1)
  const { collected } = await collect([constrained(oneOf(['true']), { sampling: { ...SAMPLING, bannedTokens: all } })])
  expect(collected.error('c')).toBe('invalid_request')
})

test('an invalid grammar is refused, and the next valid one is not', async () => {
  const bad: Constraint[] = [
    { type: 'grammar', ebnf: 'root ::= "a' },
    { type: 'grammar', ebnf: 'roots ::= "a"' },
    // No text matches it.
    { type: 'grammar', ebnf: 'root ::= a\na ::= a' },
    { type: 'grammar', ebnf: 'root ::= a\na ::= a "x"' },
    // None continues after "ab", and everything that continues after "a" never ends.
    { type: 'grammar', ebnf: 'root ::= "12" | "ab" a\na ::= a' },
    { type: 'grammar', ebnf: 'root ::= "12" | "a" a\na ::= "b" a' },
    { type: 'schema', schema: { $ref: '#' } },
    // The forced text has a million characters.
    { type: 'grammar', ebnf: 'root ::= a{1000}\na ::= "a"{1000}' },
  ]
  const requests = bad.map((constraint, i) => constrained(constraint, { id: `b${i}` }))
  const { collected } = await collect([...requests, constrained(oneOf(['12']))])
  for (const { id } of requests) expect(collected.error(id), id).toBe('invalid_request')
  expect(collected.answer('c')?.text).toBe('12')
})

test('a request of a session that is cancelled while its grammar is compiled is not told that it is invalid', async () => {
  const fake = new FakeRunner({ vocabSize: JSON_V, numSlots: 8, maxTokens: 32 })
  const kept = engineOver(fake, {}, DEFAULT_STATE_OPTIONS, 'plain', jsonTokens, grammars)
  const session = { id: 's', ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' } as const
  kept.submit(constrained({ type: 'grammar', ebnf: 'root ::= "a' }, { session }))
  kept.cancel('c')
  // Its id is free again.
  kept.submit(requestOf({ id: 'c', prompt: Int32Array.of(5), maxTokens: 3 }))
  await new Promise(setImmediate)
  const collected = drain(kept)
  expect(collected.error('c')).toBeNull()
  expect(collected.answer('c')?.completionTokens).toBe(3)
  kept.dispose()
})

test('random answers by random schemas are valid', async () => {
  const ajv = new Ajv2020({ strict: false })
  const numRuns = process.env.SKEIN_SLOW ? 10_000 : 60
  let [numAsked, numEnded] = [0, 0]
  await fc.assert(
    fc.asyncProperty(schemas(2), fc.bigInt({ min: 0n, max: 1n << 60n }), async (schema, seed) => {
      checkSchema(schema, 'schema')
      const sampling = { ...SAMPLING, seed, temperature: 1 }
      numAsked++
      const answer = await textOf({ type: 'schema', schema }, { sampling, maxTokens: 2000 })
      if (answer?.reason !== 'stop') return
      numEnded++
      const value: unknown = JSON.parse(answer.text)
      expect(ajv.validate(schema, value), `${JSON.stringify(schema)}: ${answer.text}`).toBe(true)
      // It caches compiled grammars.
      ajv.removeSchema(schema)
      expect(answer.text.replaceAll(/"(?:\\.|[^"\\])*"/g, 's')).not.toMatch(/ {2}|\n/)
    }),
    // As many as there is time for; after a timeout of the test a run would continue.
    { numRuns, interruptAfterTimeLimit: 300_000 },
  )
  if (process.env.SKEIN_SLOW) process.stdout.write(`${numAsked} schemas, ${numEnded} answers\n`)
  expect(numEnded).toBeGreaterThan(numAsked * 0.9)
}, 600_000)

test('if a step is over when it is launched, a constrained answer is in every step, also beside others', async () => {
  const held = constrained({ type: 'regex', pattern: '[abc]{30}' }, { logprobs: 0 })
  const stepsTo = async (requests: readonly GenerateRequest[]) => {
    const { engine } = makeEngine('plain')
    for (const request of requests) engine.submit(request)
    await new Promise(setImmediate)
    for (let steps = 1; steps < 1000; steps++) {
      const end = engine.step().find(({ type, id }) => type === 'finish' && id === 'c')
      if (end?.type !== 'finish') continue
      engine.dispose()
      return { steps, tokens: end.completionTokens }
    }
    throw new Error('it does not end')
  }
  const alone = await stepsTo([held])
  const stop = { strings: [], tokens: [], ignoreEos: true }
  const free = { prompt: held.prompt, maxTokens: alone.tokens, stop }
  // The mask after its last token says that nothing may follow.
  const { steps, tokens } = await stepsTo([requestOf({ id: 'c', ...free })])
  expect(alone).toEqual({ steps: steps + 1, tokens })
  const others = ['a', 'b', 'd'].map((id) => requestOf({ id, ...free, maxTokens: 400 }))
  expect(await stepsTo([held, ...others])).toEqual(alone)
})
