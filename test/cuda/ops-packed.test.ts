/** GGUF's blocks on cuda: products of few and many tokens, and whole models, compared with the values in the file. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { PACKED_BLOCKS } from '../../src/backend/quantised.ts'
import type { PackedType } from '../../src/backend/weight-types.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { QuantChoice } from '../../src/host/model-choice.ts'
import { capacityFor, poisoned, raggedBatch, randomNorm, runOnce } from '../backend/kit.ts'
import { readTensors, writeAsGguf } from '../helpers/formats.ts'
import { logitsOfAll } from '../helpers/logits.ts'
import { packedSource } from '../helpers/packed-source.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { someTokens } from '../helpers/runner.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { compare, halves, poisonedHalves } from './ops-kit.ts'

const TYPES = Object.keys(PACKED_BLOCKS) as PackedType[] // Object.keys loses the key type

describeCuda('packed weights', () => {
  const backend = backendOfGroup()

  test.each(TYPES)('%s, few tokens and many', (type) => {
    for (const [rows, columns] of [
      [64, 256],
      [264, 512],
      [1032, 1024],
    ] as const)
      for (const tokens of [1, 5, 16, 32, 33, 70, 300])
        compare(backend(), 1e-3, `${rows}×${columns}, ${tokens} tokens`, (on) => {
          const capacity = capacityFor(tokens)
          const batch = raggedBatch(capacity, [tokens], [0], 1)
          const y = poisonedHalves(on, [tokens + 2, rows])
          const x = on.activation([tokens + 2, columns], halves((tokens + 2) * columns, 3))
          const weight = on.matrix(packedSource(type, rows, columns), type)
          runOnce(on, capacity, batch, (ops) => ops.linear([{ y, x, weight }]))
          return [on.readTensor(y, 0, tokens * rows).result()]
        })
  })

  test.each(TYPES)('%s takes the memory of the file plus at most 12 %%', (type) => {
    const { elements, bytes } = PACKED_BLOCKS[type]
    const file = (128 * 512 * bytes) / elements
    const matrix = backend().matrix(packedSource(type, 128, 512), type)
    expect(matrix.bytes).toBeGreaterThanOrEqual(file)
    expect(matrix.bytes).toBeLessThanOrEqual(1.12 * file)
    expect(backend().table(packedSource(type, 128, 512)).bytes).toBe(file)
  })

  test.each(TYPES)('embed from %s', (type) => {
    for (const C of [256, 768, 4096]) {
      const capacity = capacityFor(9)
      const batch = raggedBatch(capacity, [9], [0], 50)
      compare(backend(), 1e-5, `C ${C}`, (on) => {
        const x = poisoned(on, [11, C])
        const table = on.table(packedSource(type, 50, C))
        runOnce(on, capacity, batch, (ops) => ops.embed(x, table, randomNorm(on, C, 1e-5, 1)))
        return [on.readTensor(x, 0, 9 * C).result()]
      })
    }
  })

  test('different types in one linear, with f16 among them', () => {
    for (const tokens of [1, 20, 100])
      compare(backend(), 1e-3, `${tokens} tokens`, (on) => {
        const capacity = capacityFor(tokens)
        const batch = raggedBatch(capacity, [tokens], [0], 1)
        const jobs = (['Q4_K', 'Q6_K', 'Q8_0', 'Q5_K'] as const).map((type, j) => ({
          y: poisonedHalves(on, [tokens + 2, 256]),
          x: on.activation([tokens + 2, 512], halves((tokens + 2) * 512, j)),
          weight: on.matrix(packedSource(type, 256, 512), type),
        }))
        const plain = { ...packedSource('Q8_0', 64, 512) }
        const y = poisonedHalves(on, [tokens + 2, 64])
        const x = on.activation([tokens + 2, 512], halves((tokens + 2) * 512, 9))
        const all = [...jobs, { y, x, weight: on.matrix(plain, 'f16') }]
        runOnce(on, capacity, batch, (ops) => ops.linear(all))
        return all.map((job) => on.readTensor(job.y, 0, tokens * job.weight.rows).result())
      })
  })
})

describeCuda('models of packed weights', () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-cuda-packed-'))
  afterAll(() => rmSync(folder, { recursive: true }))
  const TOKENS = someTokens(40, 3)
  const run = (model: string, quant: QuantChoice, device: 'cpu' | 'cuda:0') => {
    const runner = loadRunner({ model, device, quant, slots: 1, threads: 2 })
    try {
      return { info: runner.info, logits: logitsOfAll(runner, TOKENS) }
    } finally {
      runner.dispose()
    }
  }

  test.each(TYPES)('%s', (type) => {
    const source = writeRandomRwkv7(join(folder, 'source.pth'), {
      ...{ layers: 3, channels: 512, vocab: 1024, ranks: { w: 64, a: 64, v: 32, g: 128 } },
    })
    const path = join(folder, `${type}.gguf`)
    writeAsGguf(path, readTensors(source), { architecture: 'rwkv7', type, repeats: 2 ** 15 })
    const truth = run(path, 'f32', 'cpu').logits
    const own = run(path, 'file', 'cuda:0')
    const plain = run(path, 'f16', 'cuda:0')
    const largest = truth.reduce((most, value) => Math.max(most, Math.abs(value)), 0)
    const worst = (logits: Float32Array) =>
      logits.reduce((most, value, i) => Math.max(most, Math.abs(value - truth[i]!)), 0) / largest
    console.log(type, worst(own.logits), worst(plain.logits), own.info.weightBytes)
    expect(own.info.weightType).toBe(type)
    expect(worst(own.logits)).toBeLessThan(2e-3)
    expect(own.info.weightBytes).toBeLessThan(0.8 * plain.info.weightBytes)
  })
})
