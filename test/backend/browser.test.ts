/** `skein/browser` with the device of the package webgpu: what a page does with it, without the page. */
import { statSync, writeFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { landed } from '../../src/backend/flight.ts'
import { writeRandomWeights } from '../../src/bench/random-model.ts'
import { type Llm, load, type Progress, SkeinError } from '../../src/browser/index.ts'
import * as browserDigest from '../../src/browser/platform/digest.ts'
import { identityOf } from '../../src/engine/kept/identity.ts'
import * as nodeDigest from '../../src/files/digest.ts'
import { loadTokenizer } from '../../src/host/checkpoints/open-model.ts'
import { loadRunner } from '../../src/host/load.ts'
import { load as loadInNode } from '../../src/index.ts'
import { decodeSnapshot } from '../../src/state/snapshot-file.ts'
import { IS_SLOW } from '../helpers/slow.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { vocabularyText } from '../helpers/vocabulary.ts'
import { WEBGPU_PROBLEM } from '../helpers/webgpu.ts'

const PROMPT = 'Once there was'
/** Two layers of one head; ids 1 to 256 are bytes, the others are words of three letters. */
const SIZES = {
  layers: 2,
  channels: 64,
  heads: 1,
  headSize: 64,
  ffnSize: 128,
  vocabSize: 768,
  ranks: { w: 8, a: 8, v: 8, g: 8 },
}
const LETTERS = 'abcdefgh'
const WORDS = Array.from({ length: 511 }, (_, i) => wordOf(i))

function wordOf(i: number): string {
  return `${LETTERS[i >> 6]}${LETTERS[(i >> 3) & 7]}${LETTERS[i & 7]}`
}

test('a browser’s checksums are those of Node', () => {
  const bytes = Uint8Array.from({ length: 1000 }, (_, i) => (i * 7919) >> 3)
  for (const { length } of [{ length: 0 }, { length: 1 }, { length: 1000 }]) {
    const part = bytes.subarray(0, length)
    const [own, nodes] = [browserDigest, nodeDigest].map(({ sha256, crc32, hexOf }) => [
      hexOf(sha256().update('é').update(part).digest()),
      crc32(part, crc32(bytes)),
    ])
    expect(own).toEqual(nodes)
  }
})

describe.skipIf(WEBGPU_PROBLEM !== null)('a model from a URL', () => {
  let server: Server
  let origin: string
  let llm: Llm
  const seen: Progress[] = []
  const folder = temporaryFolder()
  const model = join(folder, 'tiny.pth')
  beforeAll(async () => {
    writeRandomWeights(model, SIZES, { seed: 4, dtype: 'bf16' })
    writeFileSync(join(folder, 'tiny.vocab.txt'), vocabularyText(WORDS))
    server = createServer(async (request, reply) => {
      const bytes = await readFile(join(folder, request.url!)).catch(() => null)
      reply.statusCode = bytes ? 200 : 404
      if (bytes) reply.setHeader('content-length', bytes.length)
      reply.end(bytes)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    llm = await load(`${origin}/tiny.pth`, { slots: 2, onProgress: (p) => seen.push(p) })
  })
  afterAll(() => {
    llm?.close()
    server.close()
  })

  const all = async (pieces: AsyncIterable<string>) => {
    let text = ''
    for await (const piece of pieces) text += piece
    return text
  }
  const GREEDY = { temperature: 0, maxTokens: IS_SLOW ? 16 : 6, stop: ['\n\nUser:'] }

  test('reports its progress', () => {
    const { size } = statSync(model)
    expect(seen.filter(({ stage }) => stage === 'download').at(-1)).toEqual({
      stage: 'download',
      doneBytes: size,
      totalBytes: size,
    })
    const last = seen.at(-1)!
    expect([last.stage, last.doneBytes]).toEqual(['weights', last.totalBytes])
  })

  test('gives the answers of the same model on the CPU, also beside another answer', async () => {
    const node = await loadInNode({ model, device: 'cpu' })
    const ways = [
      [PROMPT, GREEDY],
      ['Another', { ...GREEDY, temperature: 1, topP: 0.9, seed: 7, repetitionPenalty: 1.2 }],
    ] as const
    const expected = []
    for (const [prompt, options] of ways) expected.push(await all(node.generate(prompt, options)))
    await node.close()
    const actual = await Promise.all(ways.map(([prompt, way]) => all(llm.generate(prompt, way))))
    expect(actual).toEqual(expected)
    expect(expected[0]).not.toBe('')
  })

  test('a chat uses the template and its stops', { tags: 'night' }, async () => {
    const turns = [{ role: 'user', content: 'What is this?' }] as const
    const rendered = 'User: What is this?\n\nAssistant:'
    const { stop: _, ...greedy } = GREEDY
    expect(await all(llm.chat(turns, greedy))).toBe(await all(llm.generate(rendered, GREEDY)))
  })

  test('a state continues where it was: read, forked, saved and restored', async () => {
    const whole = 'It was'
    const ask = ' all days'
    const expected = await all(llm.generate(whole + ask, GREEDY))
    const a = llm.begin()
    await a.read(whole)
    const b = a.fork()
    expect(await all(a.generate(ask, GREEDY))).toBe(expected)
    const file = await b.save()
    b.close()
    const c = await llm.restore(file)
    expect(c.text).toBe(whole)
    expect(await all(c.generate(ask, GREEDY))).toBe(expected)
    expect(c.text).toBe(a.text)
    a.close()
    c.close()
  })

  test('after a stop string the state has consumed exactly the visible text', { tags: 'night' }, async () => {
    const plain = { temperature: 0, maxTokens: 24 }
    const whole = await all(llm.generate(PROMPT, plain))
    // Within words, beyond the end of one.
    const stop = /[a-h]{2}(?=[a-h])/.exec(whole.slice(4))![0]
    const kept = whole.slice(0, whole.indexOf(stop))
    const cut = llm.begin()
    expect(await all(cut.generate(PROMPT, { ...plain, stop: [stop] }))).toBe(kept)
    expect(cut.text).toBe(PROMPT + kept)
    const identity = identityOf(llm.info, llm.tokenizer.hash)
    const { tokens, state } = decodeSnapshot(await cut.save(), identity).snapshot
    cut.close()
    // A state that was never cut: fed the same tokens, and one more that remains.
    const runner = loadRunner({ model, device: 'cpu', slots: 1 })
    runner.clearSlot(0)
    runner.step([{ slot: 0, tokens, samples: [] }])
    const expected = await landed(runner.readState(0))
    runner.dispose()
    for (const [i, array] of expected.entries())
      for (const [at, value] of array.entries()) expect(state[i]![at]).toBeCloseTo(value, 3)
  })

  test('a saved state has the format of the server', { tags: 'night' }, async () => {
    const state = llm.begin()
    await state.read(PROMPT)
    const file = await state.save()
    state.close()
    const runner = loadRunner({ model, device: 'cpu', slots: 1 })
    const tokenizer = loadTokenizer({ model })
    const { snapshot } = decodeSnapshot(file, identityOf(runner.info, tokenizer.hash))
    expect(tokenizer.decode([...snapshot.tokens, ...snapshot.tail])).toBe(PROMPT)
    await landed(runner.writeState(0, snapshot.state))
    runner.dispose()
  })

  test('stops as told, and frees its slot', { tags: 'night' }, async () => {
    const aborter = new AbortController()
    const pieces = llm.generate(PROMPT, { maxTokens: 1000, signal: aborter.signal })
    await pieces.next()
    aborter.abort()
    await expect(pieces.next().then(() => all(pieces))).rejects.toThrow(/cancelled/)
    for await (const _ of llm.generate(PROMPT, GREEDY)) break
    const states = [llm.begin(), llm.begin()]
    expect(() => llm.begin()).toThrow(/all 2 states are in use/)
    for (const state of states) state.close()
  })

  test('errors are reported', async () => {
    await expect(load(`${origin}/absent.pth`)).rejects.toThrow(/HTTP 404/)
    await expect(llm.generate('', {}).next()).rejects.toThrow(/give a prompt/)
    await expect(llm.generate('a', { topP: 2 }).next()).rejects.toThrow(/topP must be 0 to 1/)
    const state = llm.begin()
    const running = state.generate(PROMPT, GREEDY)
    const first = running.next()
    expect(() => state.fork()).toThrow(SkeinError)
    await first
    await running.return()
    state.close()
    expect(() => state.fork()).toThrow(/closed/)
    const damaged = new Uint8Array(100)
    await expect(llm.restore(damaged)).rejects.toThrow(/not a state/)
  })
})
