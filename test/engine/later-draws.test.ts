/**
 * Answers with grammars in the overlapped loop: their rows are launched before their masks are known, and the draw is
 * made when the mask arrives. Masks come at once, late, or in random order; answers equal those of the plain loop.
 */
import { expect, test } from 'vitest'
import { seededRandom } from '../../src/bench/serve/random.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import { ANY_OBJECT, type Constraint, oneOf } from '../../src/grammar/constraint.ts'
import type { ToRows } from '../../src/grammar/matcher-rows.ts'
import type { StartThread } from '../../src/grammar/matchers.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { directGrammars, JSON_V, jsonTokens } from '../helpers/grammars.ts'
import { Collected, drain, engineOver, type Loop, requestOf, SAMPLING } from './kit.ts'

const direct = await directGrammars()

/** Grammars whose thread answers after a number of polls: `delay` of the n-th message. */
function lateGrammars(delay: (n: number) => number) {
  const waiting: { readonly handle: () => void; looksLeft: number }[] = []
  let numPosted = 0
  const start: StartThread = (options, events) => {
    const thread = direct(options, events)
    const post = (message: ToRows) => {
      const handle = () => thread.post(message)
      if (message.type === 'compile') handle()
      else waiting.push({ handle, looksLeft: delay(numPosted++) })
    }
    return { post, end: () => thread.end() }
  }
  const look = () => {
    for (const one of waiting) one.looksLeft--
    while (waiting.length > 0 && waiting[0]!.looksLeft < 0) waiting.shift()!.handle()
  }
  return { start, look }
}

interface Run {
  readonly requests: readonly GenerateRequest[]
  readonly loop?: Loop
  readonly delay?: (n: number) => number
  /** Actions before a given turn. */
  readonly before?: (engine: ReturnType<typeof engineOver>, turn: number) => void | Promise<void>
  readonly numSlots?: number
}

async function run({ requests, loop = 'overlapped', delay = () => 0, before, numSlots = 8 }: Run) {
  const fake = new FakeRunner({ vocabSize: JSON_V, numSlots, maxTokens: 48 })
  const later = { drawn: 0, left: 0, ofKept: 0 }
  const drawLater = fake.drawLater.bind(fake)
  fake.drawLater = (masks) => {
    for (const mask of masks) later[mask === null ? 'left' : 'drawn']++
    drawLater(masks)
  }
  fake.onStep = (rows) => {
    later.ofKept += rows.filter(({ tokens }) => tokens.length === 0).length
  }
  const { start, look } = lateGrammars(delay)
  const limits = { poisonFreedSlots: true, preemptBytes: 1e6 }
  const grammars = loop === 'plain' ? direct : start
  const engine = engineOver(fake, limits, DEFAULT_STATE_OPTIONS, loop, jsonTokens, grammars)
  for (const request of requests) engine.submit(request)
  // Waits for the grammars to compile.
  await new Promise(setImmediate)
  const collected = new Collected()
  for (let turn = 0; engine.hasWork; turn++) {
    if (turn > 5_000) throw new Error('it does not end')
    await before?.(engine, turn)
    look()
    collected.add(engine.step())
  }
  expect(engine.failure).toBeNull()
  expect(engine.stats).toMatchObject({ freeSlots: numSlots })
  engine.dispose()
  return { collected, later, log: fake.log }
}

const PROMPT = Int32Array.of(5, 6, 7)
const CONSTRAINTS: readonly Constraint[] = [
  ANY_OBJECT,
  oneOf(['true', '"abc":12', 'null']),
  { type: 'regex', pattern: '[a-c]{2}-[0-9]{9}' },
  { type: 'sequence', parts: [{ type: 'text', text: '{"abc":"xyz","a":' }, ANY_OBJECT] },
]

function randomRequests(seed: number): GenerateRequest[] {
  const next = seededRandom(seed)
  const pick = (n: number) => Math.floor(n * next())
  return Array.from({ length: 12 }, (_, i) => {
    const isPenalised = pick(3) === 0
    return requestOf({
      id: `r${i}`,
      prompt: Int32Array.from({ length: 1 + pick(20) }, () => 1 + pick(40)),
      n: 1 + pick(2),
      maxTokens: 1 + pick(60),
      sampling: { ...SAMPLING, seed: BigInt(1000 * seed + i), presencePenalty: isPenalised ? 0.5 : 0 },
      stop: { strings: pick(3) === 0 ? ['1', '":', 'bc'] : [], tokens: [], ignoreEos: false },
      logprobs: pick(4) === 0 ? 2 : null,
      ...(pick(4) === 0 ? {} : { constraint: CONSTRAINTS[pick(CONSTRAINTS.length)]! }),
    })
  })
}

const DELAYS: Readonly<Record<string, (n: number) => number>> = {
  'at once': () => 0,
  late: () => 3,
  'as they like': (n) => (n * 7919) % 11,
}

test.each(Object.keys(DELAYS))('answers equal those of the plain loop; masks come %s', async (how) => {
  const sum = { drawn: 0, left: 0, ofKept: 0 }
  for (let seed = 1; seed <= 3; seed++) {
    const requests = randomRequests(seed)
    const plain = await run({ requests, loop: 'plain' })
    const { collected, later } = await run({ requests, delay: DELAYS[how]! })
    for (const { id, n } of requests)
      for (let index = 0; index < n; index++)
        expect(collected.answer(id, index), `${id} of ${seed}`).toEqual(plain.collected.answer(id, index))
    for (const key of ['drawn', 'left', 'ofKept'] as const) sum[key] += later[key]
  }
  expect(sum.drawn).toBeGreaterThan(how === 'at once' ? 100 : 10)
  if (how !== 'at once') expect(sum.ofKept).toBeGreaterThan(10)
})

const held = (more: Partial<GenerateRequest> = {}) =>
  requestOf({
    id: 'held',
    prompt: PROMPT,
    maxTokens: 100,
    constraint: { type: 'regex', pattern: '[abc]{30}' },
    // Only drawn tokens are fed.
    logprobs: 0,
    ...more,
  })
const STOP = { strings: [], tokens: [], ignoreEos: true }

test('with masks in time a constrained answer is in every step', async () => {
  const { collected, log } = await run({ requests: [held()] })
  const { completionTokens } = collected.answer('held')!
  const free = requestOf({ id: 'free', prompt: PROMPT, maxTokens: completionTokens, stop: STOP })
  const alone = await run({ requests: [free] })
  // The mask after its last token says that nothing may follow.
  expect(log.length).toBeLessThanOrEqual(alone.log.length + 1)
})

test('other answers wait for no mask, and a constrained answer misses the steps that its mask misses', async () => {
  const free = requestOf({ id: 'free', prompt: PROMPT, maxTokens: 60, stop: STOP })
  const alone = await run({ requests: [free] })
  const requests = [free, held()]
  const { collected, log, later } = await run({ requests, delay: (n) => (n > 4 ? 100 : 0) })
  expect(collected.answer('free')).toEqual(alone.collected.answer('free'))
  const end = log.findLastIndex(({ slots }) => slots.length > 1)
  expect(log.slice(0, end).every(({ slots }) => slots.length > 0)).toBe(true)
  const steps = log.findIndex(({ tokens }, i) => i > 3 && tokens === 0)
  expect(steps === -1 || steps >= alone.log.length - 1).toBe(true)
  expect(later.left).toBeGreaterThan(0)
  const plain = await run({ requests, loop: 'plain' })
  expect(collected.answer('held')).toEqual(plain.collected.answer('held'))
})

test('answers that are cancelled, and kept with their session, end with the tokens drawn', async () => {
  const session = { id: 's', ifMissing: 'create', ifBusy: 'wait', onCancel: 'keep' } as const
  for (let turn = 2; turn < 40; turn += 5)
    for (const delay of Object.values(DELAYS)) {
      const requests = [held({ session }), held({ id: 'gone' }), held({ id: 'stays' })]
      const before: Run['before'] = (engine, now) => {
        if (now !== turn) return
        for (const id of ['held', 'gone']) engine.cancel(id)
        engine.submit(requestOf({ id: 'next', prompt: PROMPT, maxTokens: 3, session }))
      }
      const { collected } = await run({ requests, delay, before })
      const plain = await run({ requests: [held({ id: 'stays' })], loop: 'plain' })
      expect(collected.answer('stays')).toEqual(plain.collected.answer('stays'))
      expect(collected.error('next')).toBeNull()
      expect(collected.answer('next')).not.toBeNull()
    }
})

test('answers that are preempted continue where they stopped', async () => {
  const tenants = ['a', 'b', 'c']
  const requests = Array.from({ length: 9 }, (_, i) =>
    held({
      id: `t${i}`,
      tenant: tenants[i % 3],
      priority: i > 5 ? 1 : 0,
      maxTokens: 400,
      constraint: { type: 'regex', pattern: '[abc]{60}' },
      sampling: { ...SAMPLING, seed: BigInt(i) },
    }),
  )
  const plain = await run({ requests, loop: 'plain', numSlots: 16 })
  for (const delay of Object.values(DELAYS)) {
    let numPreempted = 0
    const before: Run['before'] = async (engine, turn) => {
      numPreempted = engine.stats.preemptions
      if (turn !== 24) return
      for (const one of requests.slice(3)) engine.submit(one)
      await new Promise(setImmediate)
    }
    const { collected } = await run({ requests: requests.slice(0, 3), delay, before, numSlots: 3 })
    expect(numPreempted).toBeGreaterThan(0)
    for (const { id } of requests) expect(collected.answer(id), id).toEqual(plain.collected.answer(id))
  }
})

test('a closed engine drops pending draws', async () => {
  const { start } = lateGrammars((n) => (n > 3 ? 1000 : 0))
  const fake = new FakeRunner({ vocabSize: JSON_V, numSlots: 8, maxTokens: 48 })
  const engine = engineOver(fake, {}, DEFAULT_STATE_OPTIONS, 'overlapped', jsonTokens, start)
  engine.submit(held())
  await new Promise(setImmediate)
  for (let turn = 0; turn < 30; turn++) engine.step()
  engine.cancel('held')
  drain(engine)
  await engine.close()
  expect(fake.isDisposed).toBe(true)
})
