/** Messages between gateway and worker processes: as columns, complete and in order. */
import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { deserialize, serialize } from 'node:v8'
import { describe, expect, test } from 'vitest'
import { channelToChild } from '../../src/engine/client/process-channel.ts'
import { packStep, type StepColumns, unpackStep } from '../../src/engine/client/step-columns.ts'
import type { EngineEvent, TokenText } from '../../src/engine/messages.ts'
import type { EngineStats } from '../../src/engine/stats.ts'
import { promptOf, requestOf, SAMPLING } from './kit.ts'

test('a large step crosses as columns, and arrives unchanged', () => {
  const entry = { token: 1, logprob: -1, bytes: Uint8Array.of(65), top: [], topBytes: [] }
  const finish = { type: 'finish', index: 0, reason: 'length', matched: null } as const
  const text = (id: string, index: number, tokens: number[]) =>
    ({ type: 'text', id, index, text: `ä${id}`, tokens, logprobs: null }) as const
  const events: EngineEvent[] = [
    { type: 'prompt', id: 'a', logprobs: null, seed: 2n ** 64n - 1n },
    ...Array.from({ length: 9 }, (_, i) => text('a', i, [i, 65_535])),
    text('b', 0, []),
    { ...text('c', 0, [7]), logprobs: [entry] },
    { ...finish, id: 'a', completionTokens: 2 },
    { type: 'error', id: 'd', error: { code: 'internal', message: 'no' } },
  ]
  const stats = { waiting: 1 } as EngineStats
  const step = { type: 'step', events, stats } as const
  const packed = packStep(step)
  expect(packed).toMatchObject({ type: 'step-columns', ids: { length: 10 } })
  expect(unpackStep(deserialize(serialize(packed)) as StepColumns)).toEqual(step)
  const small = { ...step, events: events.slice(0, 3) }
  expect(packStep(small)).toBe(small)
})

test('log-probabilities cross as bytes, and arrive unchanged', () => {
  const bytesOf = (id: number) => Uint8Array.from({ length: id % 5 }, (_, i) => id + i)
  const tokenOf = (i: number, k: number): TokenText => {
    const top = Array.from({ length: k }, (_, j) => ({
      token: i * 70_001 + j,
      logprob: -j / 3 - i,
    }))
    const topBytes = top.map(({ token }) => bytesOf(token))
    return { token: i, logprob: -0.1 * i, top, bytes: bytesOf(i), topBytes }
  }
  const many = Array.from({ length: 2000 }, (_, i) => (i === 0 ? null : tokenOf(i, 20)))
  const text = { type: 'text', index: 0, text: 'a', tokens: [1, 2] } as const
  const events: EngineEvent[] = [
    { type: 'prompt', id: 'echoed', seed: 7n, logprobs: many },
    { type: 'prompt', id: 'plain', logprobs: null },
    { ...text, id: 'scored', logprobs: [tokenOf(1, 0), tokenOf(2, 3)] },
    { ...text, id: 'scored too', logprobs: [] },
    { type: 'finish', id: 'plain', index: 0, reason: 'stop', matched: null, completionTokens: 1 },
  ]
  const step = { type: 'step', events, stats: { waiting: 1 } as EngineStats } as const
  const packed = serialize(packStep(step))
  expect(unpackStep(deserialize(packed) as StepColumns)).toEqual(step)
  expect(packed.length).toBeLessThan(serialize(step).length / 2)
})

test('a token that comes again has the same array, and one of another vocabulary its own bytes', () => {
  const arrive = (bytes: Uint8Array): TokenText => {
    const logprobs = [{ token: 77, logprob: -1, bytes, top: [{ token: 77, logprob: -1 }], topBytes: [bytes] }]
    const event = { type: 'text', id: 'a', index: 0, text: 'a', tokens: [77], logprobs } as const
    const packed = serialize(packStep({ type: 'step', events: [event], stats: null }))
    const [arrived] = unpackStep(deserialize(packed) as StepColumns).events
    return (arrived as typeof event).logprobs[0]!
  }
  const first = arrive(Uint8Array.of(65, 66))
  const second = arrive(Uint8Array.of(65, 66))
  expect(second.bytes).toBe(first.bytes)
  expect(second.topBytes[0]).toBe(first.bytes)
  expect(arrive(Uint8Array.of(65, 67)).bytes).toEqual(Uint8Array.of(65, 67))
  expect(first.bytes).toEqual(Uint8Array.of(65, 66))
})

describe('process channel', () => {
  const echo = fileURLToPath(new URL('../helpers/echo-child.mjs', import.meta.url))
  const start = (): ChildProcess => fork(echo, { serialization: 'advanced', execArgv: [] })

  test('typed arrays, bigints and infinities survive, in order', async () => {
    const channel = channelToChild(start())
    const sampling = { ...SAMPLING, seed: 2n ** 64n - 1n }
    const request = requestOf({ prompt: promptOf(50_000), sampling })
    const received: unknown[] = []
    const done = new Promise<void>((resolve) => {
      channel.onMessage((message) => {
        received.push(message)
        if (received.length === 2) resolve()
      })
    })
    channel.send({ type: 'generate', request })
    channel.send({ type: 'cancel', ids: ['a'] })
    await done
    expect(received).toEqual([
      { type: 'generate', request },
      { type: 'cancel', ids: ['a'] },
    ])
    const ended = new Promise((resolve) => channel.onClose(resolve))
    await channel.close()
    expect(await ended).toBe('exit code 0')
  })

  test('a killed child closes with its signal, after its last message', async () => {
    const child = start()
    const channel = channelToChild(child)
    const log: unknown[] = []
    const ended = new Promise<string>((resolve) => channel.onClose(resolve))
    const first = new Promise<void>((resolve) => {
      channel.onMessage((message) => {
        log.push(message)
        resolve()
      })
    })
    channel.send({ type: 'cancel', ids: ['a'] })
    await first
    child.kill('SIGKILL')
    expect(await ended).toBe('signal SIGKILL')
    expect(log).toHaveLength(1)
    channel.send({ type: 'cancel', ids: ['b'] })
    await channel.close()
  })

  test('messages sent before an exit arrive before the close', async () => {
    const channel = channelToChild(start())
    const log: string[] = []
    channel.onMessage((message) => log.push(message.type))
    const ended = new Promise<string>((resolve) => {
      channel.onClose((reason) => {
        log.push('closed')
        resolve(reason)
      })
    })
    channel.send({ type: 'cancel', ids: ['a'] })
    channel.send({ type: 'shutdown' })
    expect(await ended).toBe('exit code 3')
    expect(log).toEqual(['cancel', 'shutdown', 'closed'])
  })

  test('a program that cannot be started closes the channel', async () => {
    const child = fork(echo, { execPath: '/no/such/program', serialization: 'advanced' })
    const channel = channelToChild(child)
    expect(await new Promise((resolve) => channel.onClose(resolve))).toContain('ENOENT')
  })
})
