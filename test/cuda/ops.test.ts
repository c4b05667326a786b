import { expect, test } from 'vitest'
import type { Backend, Epilogue } from '../../src/backend/backend.ts'
import { roundToF16 } from '../../src/backend/reference/tensors.ts'
import {
  capacityFor,
  normals,
  poisoned,
  raggedBatch,
  randomNorm,
  randomSource,
  runOnce,
  wkv7Weights,
} from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import {
  BATCHES,
  compare,
  expectUnwritten,
  guardedRows,
  halves,
  poisonedHalves,
  randomStates,
  readStates,
} from './ops-kit.ts'

describeCuda('ops on cuda', () => {
  const cuda = backendOfGroup()

  test.each(['f32', 'f16', 'bf16'] as const)('embed from %s', (dtype) => {
    for (const C of [64, 768, 4096]) {
      const capacity = capacityFor(9)
      const batch = raggedBatch(capacity, [9], [0], 50)
      compare(cuda(), 1e-5, `C ${C}`, (backend) => {
        const x = poisoned(backend, [11, C])
        const table = backend.table(randomSource(50, C, dtype, C))
        runOnce(backend, capacity, batch, (ops) => ops.embed(x, table, randomNorm(backend, C, 1e-5, 1)))
        expectUnwritten(backend, x, 9 * C)
        return [backend.readTensor(x, 0, 9 * C).result()]
      })
    }
  })

  test.each([1, 3, 6])('shiftMix with %i outputs', (outputs) => {
    for (const channels of [64, 320, 2560]) {
      for (const { lengths, slots } of BATCHES) {
        const tokens = lengths.reduce((a, b) => a + b, 0)
        const capacity = capacityFor(tokens, lengths.length)
        const batch = raggedBatch(capacity, lengths, slots, 1)
        const shape = { layers: 2, channels, heads: 1, headSize: 64 }
        compare(cuda(), 5e-4, `C ${channels}, rows ${lengths}`, (backend) => {
          const states = randomStates(backend, shape)
          const x = backend.tensor([tokens + 2, channels], normals((tokens + 2) * channels, 7, 3))
          const out = Array.from({ length: outputs }, () => poisonedHalves(backend, [tokens + 2, channels]))
          const mix = out.map((_, i) => backend.tensor([channels], normals(channels, 20 + i)))
          runOnce(backend, capacity, batch, (ops) =>
            ops.shiftMix(out, x, randomNorm(backend, channels, 1e-5, 1), mix, states, 1, 1),
          )
          for (const y of out) expectUnwritten(backend, y, tokens * channels)
          return [readStates(states, 'shift'), ...out.map((y) => backend.readTensor(y, 0, tokens * channels).result())]
        })
      }
    }
  })

  test.each([1, 3, 449])('shiftMix of %i rows of one token', (rows) => {
    for (const channels of [320, 2560]) {
      const values = normals(rows * channels, 7, 3)
      const shifts = normals(rows + 2 * channels, 100)
      const slotOf = (row: number) => (7 * row) % rows
      const run = (backend: Backend, chosen: readonly number[]) => {
        const count = chosen.length
        const capacity = capacityFor(count, count)
        const batch = raggedBatch(capacity, new Array(count).fill(1), chosen.map(slotOf), 1)
        const states = backend.statePool({ layers: 1, channels, heads: 1, headSize: 64 }, rows)
        const wkv = new Float32Array(64 ** 2)
        for (let slot = 0; slot < rows; slot++)
          states.write(slot, [shifts.slice(slot, slot + 2 * channels), wkv]).result()
        const x = backend.tensor([count + 2, channels], guardedRows(values, channels, chosen))
        const out = [20, 21].map(() => poisonedHalves(backend, [count + 2, channels]))
        const mix = out.map((_, i) => backend.tensor([channels], normals(channels, 20 + i)))
        runOnce(backend, capacity, batch, (ops) =>
          ops.shiftMix(out, x, randomNorm(backend, channels, 1e-5, 1), mix, states, 0, 1),
        )
        for (const y of out) expectUnwritten(backend, y, count * channels)
        return [
          ...chosen.map((row) => states.read(slotOf(row)).result()[0]!),
          ...out.map((y) => backend.readTensor(y, 0, count * channels).result()),
        ]
      }
      const all = Array.from({ length: rows }, (_, row) => row)
      const last = rows - 1
      compare(cuda(), 5e-4, `C ${channels}, ${rows} rows`, (backend) => run(backend, all))
      const together = run(cuda(), all)
      const alone = run(cuda(), [last])
      const [shift, ...outputs] = [together[last]!, ...together.slice(rows)]
      expect(alone).toEqual([shift, ...outputs.map((y) => y.subarray(last * channels))])
    }
  })

  /** rows × columns of W; ranks and widths of the released models among them. */
  const MATRICES = [
    [8, 8],
    [64, 768],
    [480, 1024],
    [1024, 96],
    [264, 520],
    [2048, 2048],
    [136, 8192],
    [32, 1032],
  ] as const

  test.each([1, 3, 8, 9, 16, 17, 33, 65, 130, 321, 400])('linear of %i tokens', (tokens) => {
    const capacity = capacityFor(tokens)
    const batch = raggedBatch(capacity, [tokens], [0], 1)
    const epilogues: Epilogue[] = ['none', 'tanh', 'sigmoid', 'relu2', 'add', 'add', 'none', 'tanh']
    compare(cuda(), 1e-3, `T ${tokens}`, (backend) => {
      const outputs = MATRICES.map(([rows, columns], j) => {
        const epilogue = epilogues[j]!
        // The residual is f32 as in a model; once also f16.
        const isResidual = j === 4
        const values = halves((tokens + 2) * rows, 60 + j)
        if (epilogue !== 'add') values.fill(Number.NaN)
        const y = isResidual
          ? backend.tensor([tokens + 2, rows], values)
          : backend.activation([tokens + 2, rows], values)
        const x = backend.activation([tokens + 2, columns], halves((tokens + 2) * columns, 30 + j, 1.5))
        const weight = backend.matrix(randomSource(rows, columns, 'bf16', 40 + j), 'bf16')
        const bias = backend.tensor([rows], normals(rows, 50 + j))
        return { y, x, weight, epilogue, ...(epilogue === 'add' ? {} : { bias }) }
      })
      runOnce(backend, capacity, batch, (ops) => ops.linear(outputs))
      return outputs.map(({ y, weight }) => backend.readTensor(y, 0, tokens * weight.rows).result())
    })
  })

  test.each([1, 2, 40])('the product after relu² of %i tokens', (tokens) => {
    for (const [C, F] of [
      [64, 264],
      [776, 3072],
      [4096, 8200],
    ] as const) {
      const capacity = capacityFor(tokens)
      const batch = raggedBatch(capacity, [tokens], [0], 1)
      compare(cuda(), 1e-3, `C ${C}, F ${F}`, (backend) => {
        const x = backend.activation([tokens + 2, 64], halves((tokens + 2) * 64, 1))
        const u = poisonedHalves(backend, [tokens + 2, F])
        const y = backend.tensor([tokens + 2, C], normals((tokens + 2) * C, 2))
        const key = backend.matrix(randomSource(F, 64, 'bf16', 3), 'bf16')
        const value = backend.matrix(randomSource(C, F, 'bf16', 4), 'bf16')
        const bias = backend.tensor([F], new Float32Array(F).fill(-1.2))
        runOnce(backend, capacity, batch, (ops) => {
          ops.linear([{ y: u, x, weight: key, bias, epilogue: 'relu2' }])
          ops.linear([{ y, x: u, weight: value, epilogue: 'add' }])
        })
        return [backend.readTensor(y, 0, tokens * C).result()]
      })
    }
  })

  test('relu² saturates, and keeps NaN', () => {
    for (const tokens of [1, 20]) {
      const capacity = capacityFor(tokens)
      const x = cuda().activation([tokens + 2, 64], new Float32Array((tokens + 2) * 64).fill(100))
      const y = poisonedHalves(cuda(), [tokens + 2, 64])
      const ones = new Float32Array(64 * 64).fill(1)
      const square = () => {
        const weight = cuda().matrix(
          {
            name: 'ones',
            rows: 64,
            columns: 64,
            dtype: 'f32',
            readRows: (start, end) => new Uint8Array(ones.buffer, start * 256, (end - start) * 256),
          },
          'f32',
        )
        runOnce(cuda(), capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) =>
          ops.linear([{ y, x, weight, epilogue: 'relu2' }]),
        )
        return cuda()
          .readTensor(y, 0, tokens * 64)
          .result()
      }
      expect(square().every((value) => value === 65504)).toBe(true)
      ones[5] = Number.NaN
      expect(square()[0]).toBeNaN()
    }
  })

  test.each([1, 8, 21])('gatherNorm and logits of %i rows', (rows) => {
    const [C, V] = [320, 1000]
    const capacity = { tokens: 40, rows: 1, logits: rows + 2, samples: 0 }
    const batch = raggedBatch(capacity, [40], [0], 1)
    batch.numLogits = rows
    for (let r = 0; r < rows; r++) batch.logitRows[r] = (r * 17) % 40
    if (rows === 8) {
      batch.blendCounts[2] = 3
      batch.blendWeights.set([0.5, 0.3, 0.2], 2)
      // Two are kept, one of them a blend; one is read from what was kept.
      batch.keptAs.set([1, 0, 3])
      batch.logitRows[6] = -1 - 1
    }
    compare(cuda(), 1e-3, `R ${rows}`, (backend) => {
      const x = backend.tensor([40, C], normals(40 * C, 1))
      const hidden = poisonedHalves(backend, [rows + 2, C])
      const kept = backend.activation([3, C], normals(3 * C, 4))
      const y = poisoned(backend, [rows + 2, V])
      const head = backend.matrix(randomSource(V, C, 'bf16', 3), 'bf16')
      runOnce(backend, capacity, batch, (ops) => {
        ops.gatherNorm(hidden, x, randomNorm(backend, C, 1e-5, 3), kept)
        ops.logits(y, hidden, head)
      })
      expectUnwritten(backend, hidden, rows * C)
      return [
        backend.readTensor(hidden, 0, rows * C).result(),
        backend.readTensor(y, 0, rows * V).result(),
        backend.readTensor(kept).result(),
      ]
    })
  })
})

for (const wkv of ['f32', 'f16'] as const) {
  describeCuda(`wkv7 on cuda with ${wkv} states`, () => {
    const cuda = backendOfGroup({ wkv })

    test.each([
      ['the first layer', true],
      ['a later layer', false],
    ] as const)('%s', (_, isFirst) => {
      for (const heads of [1, 5]) {
        for (const { lengths, slots } of BATCHES) {
          const C = heads * 64
          const tokens = lengths.reduce((a, b) => a + b, 0)
          const capacity = capacityFor(tokens, lengths.length)
          const batch = raggedBatch(capacity, lengths, slots, 1)
          const shape = { layers: 2, channels: C, heads, headSize: 64 }
          const tolerance = wkv === 'f32' ? 1e-3 : 3e-3
          compare(cuda(), tolerance, `${heads} heads, rows ${lengths}`, (backend) => {
            const states = randomStates(backend, shape)
            const operand = (seed: number, scale = 1) =>
              backend.activation([tokens + 2, C], halves((tokens + 2) * C, seed, scale))
            const rate = (seed: number) =>
              backend.activation(
                [tokens + 2, C],
                normals((tokens + 2) * C, seed).map((x) => roundToF16(1 / (1 + Math.exp(-x)))),
              )
            const out = poisonedHalves(backend, [tokens + 2, C])
            const vFirst = isFirst ? poisonedHalves(backend, [tokens + 2, C]) : operand(8)
            const operands = {
              r: operand(1),
              k: operand(2),
              v: operand(3),
              w: operand(4, 3),
              a: rate(5),
              g: operand(6),
              vFirst,
              ...(isFirst ? {} : { vGate: rate(7) }),
            }
            const weights = wkv7Weights(backend, C)
            runOnce(backend, capacity, batch, (ops) => ops.wkv7(out, operands, weights, states, isFirst ? 0 : 1))
            expectUnwritten(backend, out, tokens * C)
            return [
              backend.readTensor(out, 0, tokens * C).result(),
              backend.readTensor(vFirst, 0, tokens * C).result(),
              readStates(states, 'wkv'),
            ]
          })
        }
      }
    })

    test.each([1, 2, 5])('%i heads: a row of one token is the same alone and among others', (heads) => {
      const C = heads * 64
      const slots = [2, 0, 4, 1, 3]
      const run = (chosen: readonly number[]) => {
        const count = chosen.length
        const capacity = capacityFor(count, count)
        const at = chosen.map((row) => slots[row]!)
        const batch = raggedBatch(capacity, new Array(count).fill(1), at, 1)
        const states = randomStates(cuda(), { layers: 1, channels: C, heads, headSize: 64 })
        const operand = (seed: number) =>
          cuda().activation([count + 2, C], guardedRows(halves(slots.length * C, seed), C, chosen))
        const out = poisonedHalves(cuda(), [count + 2, C])
        const operands = {
          r: operand(1),
          k: operand(2),
          v: operand(3),
          w: operand(4),
          a: operand(5),
          g: operand(6),
          vGate: operand(7),
          vFirst: operand(8),
        }
        const weights = wkv7Weights(cuda(), C)
        runOnce(cuda(), capacity, batch, (ops) => ops.wkv7(out, operands, weights, states, 0))
        const y = cuda()
          .readTensor(out, 0, count * C)
          .result()
        return at.map((slot, i) => [y.slice(i * C, (i + 1) * C), states.read(slot).result()[1]!])
      }
      const rows = slots.map((_, row) => row)
      expect(rows.flatMap((row) => run([row]))).toEqual(run(rows))
    })

    test.each([24, 500])('%i tokens: projections may leave their biases to it', (tokens) => {
      const C = 576
      const capacity = capacityFor(tokens, 2)
      const batch = raggedBatch(capacity, [1, tokens - 1], [0, 2], 1)
      const shape = { layers: 1, channels: C, heads: 9, headSize: 64 }
      compare(cuda(), wkv === 'f32' ? 2e-3 : 4e-3, 'linear and wkv7', (backend) => {
        const states = randomStates(backend, shape)
        const operand = (seed: number) => backend.activation([tokens + 2, C], halves((tokens + 2) * C, seed))
        const made = () => poisonedHalves(backend, [tokens + 2, C])
        const constant = (seed: number) => backend.tensor([C], normals(C, seed))
        const low = operand(20)
        const [out, w, a, vGate] = [made(), made(), made(), made()]
        const weight = (seed: number) => backend.matrix(randomSource(C, C, 'bf16', seed), 'bf16')
        const weights = wkv7Weights(backend, C)
        const operands = { r: operand(1), k: operand(2), v: operand(3), g: operand(6) }
        runOnce(backend, capacity, batch, (ops) => {
          ops.linear([
            { y: w, x: low, weight: weight(30), bias: constant(40) },
            { y: a, x: low, weight: weight(31), bias: constant(41), epilogue: 'sigmoid' },
            { y: vGate, x: low, weight: weight(32), bias: constant(42), epilogue: 'sigmoid' },
          ])
          ops.wkv7(out, { ...operands, w, a, vGate, vFirst: operand(8) }, weights, states, 0)
        })
        return [backend.readTensor(out, 0, tokens * C).result(), readStates(states, 'wkv')]
      })
    })
  })
}
