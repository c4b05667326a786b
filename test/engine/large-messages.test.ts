/**
 * Large messages between processes are sent in parts, with small messages first; those of each request stay in order.
 */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import { serveEngine } from '../../src/engine/client/worker-loop.ts'
import type { EngineCalls, EngineEvent, FromWorker, TokenText, ToWorker } from '../../src/engine/messages.ts'
import type { EngineStats } from '../../src/engine/stats.ts'
import { portPair, type SmallPort } from '../helpers/port-pair.ts'
import { Collected, promptOf, requestOf, soloAnswer } from './kit.ts'
import { answerAfter, setUp, turnOf } from './session-kit.ts'

/** A part, and what identifies it. */
const MOST_BYTES = 2 ** 16 + 1000

function scores(count: number, k = 20): TokenText[] {
  const top = Array.from({ length: k }, (_, j) => ({ token: 70_001 + j, logprob: -j / 3 }))
  const topBytes = top.map(({ token }) => Uint8Array.of(token % 256, 7))
  return Array.from({ length: count }, (_, i) => {
    return { token: i, logprob: -0.1 * i, top, topBytes, bytes: Uint8Array.of(i % 256) }
  })
}

const stepOf = (events: readonly EngineEvent[], waiting = 0) =>
  ({ type: 'step', events, stats: { waiting } as EngineStats }) as const
const textOf = (id: string, text: string): EngineEvent => {
  return { type: 'text', id, index: 0, text, tokens: [1], logprobs: null }
}
const scored = (id: string, count: number): EngineEvent => {
  return { type: 'prompt', id, logprobs: scores(count) }
}
const finish = (id: string): EngineEvent => {
  return { type: 'finish', id, index: 0, reason: 'length', matched: null, completionTokens: 1 }
}

/** Both processes take turns until nothing is in flight. */
function settle(ports: readonly SmallPort[]): void {
  for (let i = 0; i < 100_000; i++) {
    if (ports.every((port) => port.isIdle)) return
    for (const port of ports) port.turn()
  }
  throw new Error('messages without end')
}

describe('a token behind a large message', () => {
  const large = {
    'log-probabilities of a prompt': (): FromWorker => stepOf([scored('large', 4000)]),
    'a file of a session': (): FromWorker => {
      return { type: 'result', id: 7, value: new Uint8Array(5_000_000) }
    },
    'tokens of a session': (): FromWorker => {
      return { type: 'result', id: 7, value: new Int32Array(1_000_000) }
    },
    'log-probabilities of many rows': (): FromWorker => {
      const rows = Array.from({ length: 512 }, (_, i) => `row ${i}`)
      return stepOf(rows.map((id) => ({ type: 'text', id, index: 0, text: 'x', tokens: [1], logprobs: scores(1) })))
    },
    embeddings: (): FromWorker => {
      const rows = Array.from({ length: 64 }, (_, i) => `row ${i}`)
      const embedding = new Float32Array(4096)
      return stepOf(rows.map((id) => ({ type: 'prompt', id, logprobs: null, embedding })))
    },
  }
  test.each(Object.entries(large))('%s: is read in the next turn', (_, message) => {
    const { ports, gateway, worker } = portPair()
    const read: FromWorker[] = []
    gateway.onMessage((one) => read.push(one))
    worker.onMessage(() => {})
    worker.send(message())
    worker.send(stepOf([textOf('small', 'token')]))
    ports[0].turn()
    expect(read).toContainEqual(stepOf([textOf('small', 'token')]))
    settle(ports)
    expect(Math.max(...ports[1].sent)).toBeLessThan(MOST_BYTES)
  })

  test('beside a long prompt, a cancel of another request is read in the next turn, its own after it', () => {
    const { ports, gateway, worker } = portPair()
    const read: ToWorker[] = []
    gateway.onMessage(() => {})
    worker.onMessage((one) => read.push(one))
    const request = requestOf({ id: 'long', prompt: promptOf(131_072) })
    gateway.send({ type: 'generate', request })
    gateway.send({ type: 'cancel', ids: ['long'] })
    gateway.send({ type: 'cancel', ids: ['other'] })
    ports[1].turn()
    expect(read).toEqual([{ type: 'cancel', ids: ['other'] }])
    settle(ports)
    expect(read.slice(1)).toEqual([
      { type: 'generate', request },
      { type: 'cancel', ids: ['long'] },
    ])
    expect(Math.max(...ports[0].sent)).toBeLessThan(MOST_BYTES)
  })
})

test('counters never go back', () => {
  const { ports, gateway, worker } = portPair()
  const seen: unknown[] = []
  worker.onMessage(() => {})
  gateway.onMessage((one) => seen.push(one.type === 'step' && one.stats))
  worker.send(stepOf([scored('large', 4000)], 1))
  worker.send(stepOf([], 2))
  settle(ports)
  expect(seen).toEqual([{ waiting: 1 }, { waiting: 2 }, null])
})

test('a failure is told before what is large and on its way', () => {
  const { ports, gateway, worker } = portPair()
  const seen: string[] = []
  worker.onMessage(() => {})
  gateway.onMessage((one) => seen.push(one.type === 'step' ? (one.events[0]?.type ?? '') : one.type))
  worker.send(stepOf([scored('large', 4000)]))
  worker.send({ type: 'fatal', error: { code: 'internal', message: 'no' } })
  settle(ports)
  expect(seen).toEqual(['', 'fatal', 'prompt'])
})

test('of what goes in parts only as much is produced as the peer may be behind, and all of it arrives', async () => {
  const { ports, gateway, worker } = portPair()
  worker.onMessage(() => {})
  let events = 0
  gateway.onMessage((one) => {
    if (one.type === 'step') events += one.events.length
  })
  let numSent = 0
  while (worker.largeRoom() === null) {
    worker.send(stepOf([scored(`${numSent}`, 2000)]))
    numSent++
    // It reads what is small.
    for (const port of ports) port.turn()
  }
  // A token with its alternatives counts as 1.3 KB; the limit is 64 MB.
  expect(numSent).toBeGreaterThan(10)
  expect(numSent).toBeLessThan(30)
  const room = worker.largeRoom()
  settle(ports)
  await room
  expect(worker.largeRoom()).toBeNull()
  expect(events).toBe(numSent)
})

test('no step is made while four are unread', async () => {
  const { ports, gateway, worker } = portPair()
  worker.onMessage(() => {})
  let numRead = 0
  gateway.onMessage(() => numRead++)
  let numSent = 0
  for (; worker.room() === null; numSent++) worker.send(stepOf([textOf('a', 'b')]))
  expect([numSent, numRead]).toEqual([4, 0])
  const room = worker.room()
  settle(ports)
  await room
  expect([worker.room(), numRead]).toEqual([null, 4])
})

test('a connection that ends releases what was to be sent', async () => {
  const { worker } = portPair()
  worker.send(stepOf([scored('large', 4000)]))
  const closing = worker.close()
  worker.closed('the gateway has gone')
  await closing
})

test('in whatever turns messages are sent, the events of each request arrive in order', () => {
  const size = fc.oneof(fc.integer({ min: 0, max: 40 }), fc.integer({ min: 100, max: 900 }))
  const event = fc.record({ id: fc.constantFrom('a', 'b', 'c', 'd'), size, isEnd: fc.boolean() })
  const message = fc.oneof(
    fc.record({ kind: fc.constant('step' as const), events: fc.array(event, { maxLength: 12 }) }),
    fc.record({
      kind: fc.constant('result' as const),
      id: fc.integer({ min: 1, max: 3 }),
      bytes: fc.oneof(fc.integer({ min: 0, max: 300 }), fc.integer({ min: 60_000, max: 300_000 })),
      isArray: fc.boolean(),
    }),
  )
  let count = 0
  /** Requests `a` and `b` have log-probabilities, others do not; no event follows the end of a request. */
  const lifeOf = (events: readonly { id: string; size: number; isEnd: boolean }[]) => {
    const over = new Set<string>()
    return events.flatMap(({ id, size, isEnd }): EngineEvent[] => {
      count++
      if (over.has(id)) return []
      if (isEnd) {
        over.add(id)
        return [{ ...finish(id), completionTokens: count } as EngineEvent]
      }
      const logprobs = id < 'c' ? scores(size, 5) : null
      return [{ type: 'text', id, index: 0, text: `${count}`, tokens: [count], logprobs }]
    })
  }
  const resultOf = ({ id, bytes, isArray }: { id: number; bytes: number; isArray: boolean }) => {
    const value = isArray ? new Int32Array(bytes >> 2) : new Uint8Array(bytes)
    return { type: 'result', id, value: value.fill(count++) } as const
  }
  const turns = fc.array(fc.integer({ min: 0, max: 1 }), { maxLength: 3 })
  fc.assert(
    fc.property(fc.array(fc.tuple(message, turns), { maxLength: 20 }), (lives) => {
      const { ports, gateway, worker } = portPair()
      const [went, came] = [new Map<unknown, unknown[]>(), new Map<unknown, unknown[]>()]
      const note = (to: Map<unknown, unknown[]>, one: FromWorker) => {
        const items = one.type === 'step' ? one.events : [one as { id?: unknown }]
        for (const item of items) to.set(item.id, [...(to.get(item.id) ?? []), item])
      }
      worker.onMessage(() => {})
      gateway.onMessage((one) => note(came, one))
      for (const [one, between] of lives) {
        const made: FromWorker = one.kind === 'step' ? stepOf(lifeOf(one.events)) : resultOf(one)
        note(went, made)
        worker.send(made)
        for (const end of between) ports[end]!.turn()
      }
      settle(ports)
      expect(came).toEqual(went)
      for (const port of ports) expect(Math.max(0, ...port.sent)).toBeLessThan(MOST_BYTES)
    }),
    { numRuns: 60 },
  )
})

describe('files of large states', () => {
  /** A state of 1.3 MB. */
  const LAYERS = 40_000

  async function connected() {
    const { engine } = setUp({ fake: { layers: LAYERS }, states: { prefixBytes: 0 } })
    const { ports, gateway, worker } = portPair()
    const turning = setInterval(() => settle(ports))
    const connecting = RemoteEngineClient.connect(gateway)
    void serveEngine(engine, worker).then(() => {
      settle(ports)
      clearInterval(turning)
      gateway.closed('closed')
    })
    return { ports, client: await connecting }
  }

  async function answerOf(client: RemoteEngineClient, request: ReturnType<typeof requestOf>) {
    const collected = new Collected()
    for await (const event of client.generate(request)) collected.add([event])
    return collected.answer(request.id)
  }

  test('a state is exported and imported while other requests are answered, and the session continues from it', async () => {
    const { ports, client } = await connected()
    const first = turnOf({ prompt: promptOf(20), maxTokens: 5 })
    const answer = await answerOf(client, first)
    const stream = answerOf(client, requestOf({ id: 'stream', maxTokens: 60 }))
    const files = await Promise.all([1, 2].map(() => client.call('sessions.export', { tenant: '', id: 's' })))
    const [bytes] = files as [EngineCalls['sessions.export']['result'], unknown]
    expect(files[1]).toEqual(bytes)
    expect(bytes.length).toBeGreaterThan(16 * 2 ** 16)
    const infos = await Promise.all(['a', 'b'].map((id) => client.call('sessions.import', { tenant: '', id, bytes })))
    expect(infos.map(({ id, head }) => [id, head])).toEqual([
      ['a', 1],
      ['b', 1],
    ])
    for (const { sent } of ports) {
      expect(sent.reduce((sum, size) => sum + size, 0)).toBeGreaterThan(2 * bytes.length)
      expect(Math.max(...sent)).toBeLessThan(MOST_BYTES)
    }
    const next = turnOf({ id: 'next', prompt: promptOf(4), maxTokens: 5 }, { id: 'b' })
    const history = Int32Array.of(...first.prompt, ...answer!.tokens)
    expect(await answerOf(client, next)).toEqual(answerAfter(history, next).answer)
    expect(await stream).toEqual(soloAnswer(requestOf({ maxTokens: 60 })))
    await client.close()
  })

  test('damaged bytes are refused, and the next ones are not mixed with them', async () => {
    const { client } = await connected()
    await answerOf(client, turnOf({ prompt: promptOf(20), maxTokens: 5 }))
    const bytes = await client.call('sessions.export', { tenant: '', id: 's' })
    const damaged = bytes.slice()
    damaged[bytes.length >> 1]! ^= 1
    const ask = (id: string, given: Uint8Array) => client.call('sessions.import', { tenant: '', id, bytes: given })
    await expect(ask('bad', damaged)).rejects.toMatchObject({ code: 'invalid_request' })
    expect((await ask('good', bytes)).head).toBe(1)
    await client.close()
  })
})
