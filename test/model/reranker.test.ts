/** EmbeddingRWKV's rerankers: a file of tensors below `reranker.` that reads the states of the model beside it. */

import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { LocalEngineClient } from '../../src/engine/client/local-client.ts'
import { buildApp } from '../../src/gateway/app.ts'
import { createRegistry } from '../../src/gateway/routing/registry.ts'
import { loadEngine, loadRunner } from '../../src/host/load.ts'
import type { EngineChoice } from '../../src/host/model-choice.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import { localSource } from '../helpers/fake-engine.ts'
import { type NamedValues, readTensors } from '../helpers/formats.ts'
import { writePth, writeRandomRwkv7 } from '../helpers/pth.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const folder = temporaryFolder()
const [LAYERS, C, N, INNER, END] = [3, 128, 64, 96, 65_535]
const H = C / N
const MODEL = writeRandomRwkv7(join(folder, 'model.pth'), { ...{ layers: LAYERS, channels: C, vocab: END + 1 } })
const RERANKER = join(folder, 'rwkv0b1-reranker.pth')

const waves = (count: number, scale: number) =>
  Float32Array.from({ length: count }, (_, i) => scale * Math.sin(1.7 * i + 0.01 * i * i))

/** Names as in the published files; the head is not a matrix over the vocabulary. */
function rerankerTensors(token = 'token.weight'): NamedValues[] {
  const file = join(folder, 'other.pth')
  writeRandomRwkv7(file, { layers: LAYERS, channels: C, vocab: 2, seed: 5 })
  const own = readTensors(file).filter(({ name }) => !/^(emb|head)\./.test(name))
  return [
    ...own,
    { name: token, shape: [1, C], values: waves(C, 0.8) },
    { name: 'head.0.weight', shape: [INNER, C], values: waves(INNER * C, 0.3) },
    { name: 'head.0.bias', shape: [INNER], values: waves(INNER, 0.2) },
    { name: 'head.2.weight', shape: [1, INNER], values: waves(INNER, 0.5) },
  ].map((tensor) => ({ ...tensor, name: `reranker.${tensor.name}` }))
}
const TENSORS = rerankerTensors()
beforeAll(() => writePth(RERANKER, TENSORS))

type Vector = readonly number[]
const values = new Map(TENSORS.map((one) => [one.name.slice('reranker.'.length), one]))
const vector = (name: string): Vector => [...values.get(name)!.values]
/** W x, W [out, in] */
const linear = (name: string, x: Vector): number[] => {
  const w = vector(name)
  return Array.from({ length: w.length / x.length }, (_, i) =>
    x.reduce((sum, value, j) => sum + value * w[i * x.length + j]!, 0),
  )
}
/** x W, W [in, out] */
const times = (x: Vector, name: string): number[] => {
  const w = vector(name)
  const out = w.length / x.length
  return Array.from({ length: out }, (_, j) => x.reduce((sum, value, i) => sum + value * w[i * out + j]!, 0))
}
const add = (a: Vector, b: Vector) => a.map((value, i) => value + b[i]!)
const sigmoid = (x: number) => 1 / (1 + Math.exp(-x))
const normed = (x: Vector, name: string, eps = 1e-5, groups = 1): number[] => {
  const [weight, bias] = [vector(`${name}.weight`), vector(`${name}.bias`)]
  const size = x.length / groups
  return x.map((value, i) => {
    const own = x.slice(i - (i % size), i - (i % size) + size)
    const mean = own.reduce((sum, one) => sum + one, 0) / size
    const variance = own.reduce((sum, one) => sum + (one - mean) ** 2, 0) / size
    return ((value - mean) / Math.sqrt(variance + eps)) * weight[i]! + bias[i]!
  })
}

/**
 * By the published definition, in float64: one token with nothing before it, on the states [L, H, N, N] of another
 * model.
 */
function expectedScore(states: Float32Array): number {
  let x = normed(vector('token.weight'), 'blocks.0.ln0')
  let first: Vector = []
  for (let layer = 0; layer < LAYERS; layer++) {
    const at = (name: string) => `blocks.${layer}.att.${name}`
    const low = ([l1, l2]: [string, string], input: Vector, by: (v: number) => number) =>
      times(times(input, at(l1)).map(by), at(l2))
    const same = (value: number) => value
    const xx = normed(x, `blocks.${layer}.ln1`)
    // What precedes it is zero: x + (0 − x) μ.
    const mixed = (letter: string) => xx.map((value, i) => value * (1 - vector(at(letter))[i]!))
    const r = linear(at('receptance.weight'), mixed('x_r'))
    const w = add(vector(at('w0')), low(['w1', 'w2'], mixed('x_w'), Math.tanh))
    const decay = w.map((value) => Math.exp(-Math.exp(-Math.log1p(Math.exp(-value)) - 0.5)))
    let k = linear(at('key.weight'), mixed('x_k'))
    let v = linear(at('value.weight'), mixed('x_v'))
    if (layer === 0) first = v
    else {
      const gate = add(vector(at('v0')), low(['v1', 'v2'], mixed('x_v'), same)).map(sigmoid)
      v = v.map((value, i) => value + (first[i]! - value) * gate[i]!)
    }
    const a = add(vector(at('a0')), low(['a1', 'a2'], mixed('x_a'), same)).map(sigmoid)
    const g = low(['g1', 'g2'], mixed('x_g'), sigmoid)
    const removal = k.map((value, i) => value * vector(at('k_k'))[i]!)
    k = k.map((value, i) => value * (1 + (a[i]! - 1) * vector(at('k_a'))[i]!))
    const y: number[] = []
    for (let h = 0; h < H; h++) {
      const own = removal.slice(h * N, (h + 1) * N)
      const length = Math.hypot(...own)
      const unit = own.map((value) => value / length)
      for (let row = 0; row < N; row++) {
        const begin = ((layer * H + h) * N + row) * N
        const state = states.subarray(begin, begin + N)
        const found = state.reduce((sum, value, j) => sum - value * unit[j]!, 0)
        y.push(
          state.reduce((sum, value, j) => {
            const c = h * N + j
            const next = value * decay[c]! + found * unit[j]! * a[c]! + v[h * N + row]! * k[c]!
            return sum + next * r[c]!
          }, 0),
        )
      }
    }
    const out = normed(y, at('ln_x'), 64e-5, H).map((value, i) => {
      const begin = i - (i % N)
      const bonus = r
        .slice(begin, begin + N)
        .reduce((sum, one, j) => sum + one * k[begin + j]! * vector(at('r_k'))[begin + j]!, 0)
      return (value + bonus * v[i]!) * g[i]!
    })
    x = add(x, linear(at('output.weight'), out))
    const ffn = `blocks.${layer}.ffn`
    const input = normed(x, `blocks.${layer}.ln2`).map((value, i) => value * (1 - vector(`${ffn}.x_k`)[i]!))
    const wide = linear(`${ffn}.key.weight`, input).map((value) => Math.max(0, value) ** 2)
    x = add(x, linear(`${ffn}.value.weight`, wide))
  }
  const inner = add(linear('head.0.weight', normed(x, 'ln_out')), vector('head.0.bias'))
  return linear('head.2.weight', inner.map(Math.tanh))[0]!
}

const choiceOn = (device: 'reference' | 'cpu'): EngineChoice => ({
  ...{ model: MODEL, device, slots: 2, maxTokens: 32, reranker: RERANKER },
  vocab: join(import.meta.dirname, '../../models/demo.vocab.txt'),
})

describe.each(['reference', 'cpu'] as const)('on %s', (device) => {
  const choice = choiceOn(device)
  const opened: { close(): Promise<unknown> }[] = []
  afterAll(async () => {
    for (const one of opened) await one.close()
  })

  test(
    'documents are ranked by the states that they and the query produce',
    device === 'cpu' ? {} : { tags: 'night' },
    async () => {
      const { engine, tokenizer } = await loadEngine(choice)
      const client = new LocalEngineClient(engine)
      const models = createRegistry([{ id: 'm', tokenizer, source: localSource(client) }])
      const app = buildApp({ models, keys: [], host: '127.0.0.1', version: '1' })
      opened.push(app, client)
      const query = 'What is in the sea?'
      const documents = ['A goose.', 'The fish swim in the sea.', 'Rain', 'Salt, and much of it']
      const payload = { query, documents }
      const reply = (await app.inject({ method: 'POST', url: '/v1/rerank', payload })).json()
      const runner = loadRunner(choice)
      let numTokens = 0
      const scores = documents.map((document) => {
        const text = `Instruct: Given a query, retrieve documents that answer the query\nDocument: ${document}\nQuery: ${query}`
        const tokens = Int32Array.of(...tokenizer.encode(text), END)
        numTokens += tokens.length
        runner.clearSlot(0)
        for (let from = 0; from < tokens.length; from += 32)
          runner.step([{ slot: 0, tokens: tokens.subarray(from, from + 32), samples: [] }])
        return sigmoid(expectedScore(runner.readState(0).result()[1]!))
      })
      runner.dispose()
      expect(new Set(scores.map((score) => score.toFixed(3))).size).toBe(documents.length)
      const order = [...scores.keys()].sort((a, b) => scores[b]! - scores[a]!)
      expect(reply.results.map(({ index }: { index: number }) => index)).toEqual(order)
      for (const { index, relevance_score } of reply.results) expect(relevance_score).toBeCloseTo(scores[index]!, 4)
      expect(reply.usage.total_tokens).toBe(numTokens)
      const { data } = (await app.inject('/v1/models')).json()
      expect(data[0].reranker).toBe(true)
      // The same, whatever it is scored with.
      const again = { query, documents: documents.slice(1, 2) }
      const alone = (await app.inject({ method: 'POST', url: '/v1/rerank', payload: again })).json()
      const beside = reply.results.find(({ index }: { index: number }) => index === 1)
      expect(alone.results[0].relevance_score).toBe(beside.relevance_score)
      await expect.poll(() => engine.stats.freeSlots).toBe(2)
    },
  )
})

test('a reranker is given back when the draft beside it cannot be loaded', async () => {
  const dispose = vi.spyOn(ModelRunner.prototype, 'dispose')
  await expect(loadEngine({ ...choiceOn('reference'), draft: RERANKER })).rejects.toThrow(/a reranker, which reads/)
  expect(dispose).toHaveBeenCalledOnce()
  dispose.mockRestore()
})

test('beside a model on webgpu neither a reranker nor a draft model is loaded, which is said at once', async () => {
  const choice: EngineChoice = { ...choiceOn('reference'), device: 'webgpu' }
  const said = (flag: string) => `--${flag} is for models on a CPU or on CUDA; on webgpu leave it out`
  await expect(loadEngine(choice)).rejects.toThrow(said('reranker'))
  await expect(loadEngine({ ...choice, reranker: undefined, draft: MODEL })).rejects.toThrow(said('draft'))
})

test('files that do not fit are refused with the reason', async () => {
  const choice = choiceOn('reference')
  await expect(loadEngine({ ...choice, model: RERANKER, reranker: undefined })).rejects.toThrow(
    /a reranker, which reads the states of another model; give it as --reranker/,
  )
  await expect(loadEngine({ ...choice, reranker: MODEL })).rejects.toThrow(/is no reranker/)
  const small = join(folder, 'small.pth')
  writePth(
    small,
    TENSORS.filter(({ name }) => !name.startsWith('reranker.blocks.2.')),
  )
  await expect(loadEngine({ ...choice, reranker: small })).rejects.toThrow(
    /reads states of 2 layers of 128 channels in 2 heads, and the model has 3 layers/,
  )
  const headless = join(folder, 'headless.pth')
  writePth(
    headless,
    TENSORS.filter(({ name }) => name !== 'reranker.head.2.weight'),
  )
  await expect(loadEngine({ ...choice, reranker: headless })).rejects.toThrow(
    /reranker\.head\.2\.weight is missing, expected \[1, 96\]/,
  )
})
