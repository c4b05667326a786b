import { join } from 'node:path'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { hostTableBytes, modelBytes, splitLayers, stageBytes } from '../../src/model/run/layer-split.ts'
import { readTensors, writeAsGguf } from '../helpers/formats.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { tinyModel } from '../helpers/runner.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const even = (layers: number, ends = 0) => ({ input: ends, layers: new Array<number>(layers).fill(100), output: ends })

const counts = (...args: Parameters<typeof splitLayers>) => splitLayers(...args).map(({ from, to }) => to - from)

test('equal layers are divided equally', () => {
  expect(counts(even(32), 1)).toEqual([32])
  expect(counts(even(32), 4)).toEqual([8, 8, 8, 8])
  expect(splitLayers(even(3), 2)).toEqual([
    { from: 0, to: 1 },
    { from: 1, to: 3 },
  ])
})

test('the embedding and the head count', () => {
  expect(counts(even(32, 133), 4)).toEqual([7, 9, 9, 7])
  expect(counts({ input: 1000, layers: [1, 1, 1, 1], output: 0 }, 2)).toEqual([1, 3])
})

test('more stages than layers are refused', () => {
  expect(() => splitLayers(even(3), 4)).toThrow('3 layers cannot be split over 4 devices')
})

const bytes = fc.integer({ min: 1, max: 1000 })

test('no split has a smaller largest stage', () => {
  fc.assert(
    fc.property(
      fc.record({ input: bytes, layers: fc.array(bytes, { minLength: 3, maxLength: 9 }), output: bytes }),
      fc.integer({ min: 1, max: 3 }),
      (sizes, numStages) => {
        const ranges = splitLayers(sizes, numStages)
        expect(ranges).toHaveLength(numStages)
        expect(ranges.flatMap(({ from, to }) => sizes.layers.slice(from, to))).toEqual(sizes.layers)
        const largest = Math.max(...ranges.map(({ from, to }) => stageBytes(sizes, from, to)))
        for (const cuts of allCuts(sizes.layers.length, numStages)) {
          const other = cuts.slice(1).map((to, i) => stageBytes(sizes, cuts[i]!, to))
          expect(largest).toBeLessThanOrEqual(Math.max(...other))
        }
      },
    ),
  )
})

/** Every way to divide `layers` into `stages` non-empty ranges: [0, …, layers]. */
function allCuts(layers: number, stages: number): number[][] {
  if (stages === 1) return [[0, layers]]
  return Array.from({ length: layers - stages + 1 }, (_, i) => layers - 1 - i).flatMap((last) =>
    last < stages - 1 ? [] : allCuts(last, stages - 1).map((cuts) => [...cuts, layers]),
  )
}

test.each(['rwkv7', 'rwkv7a', 'rwkv6'] as const)('every tensor of an %s file is counted once', (architecture) => {
  const checkpoint = openCheckpoint(tinyModel(architecture))
  try {
    const elements = [...checkpoint.tensors.values()].reduce(
      (sum, { shape }) => sum + shape.reduce((product, n) => product * n, 1),
      0,
    )
    const { input, layers, output } = modelBytes(checkpoint, 'f32')
    expect(layers).toHaveLength(3)
    const host = hostTableBytes(checkpoint)
    expect(host).toBe(architecture === 'rwkv7a' ? 3 * 4 * 512 * 16 * 16 : 0)
    expect(input + output + layers.reduce((a, b) => a + b) + host).toBe(4 * elements)
    // [512, 128], and a norm over 128 channels.
    expect([input, output]).toEqual([4 * (512 * 128 + 256), 4 * (512 * 128 + 256)])
    const rounded = modelBytes(checkpoint, 'q4')
    expect(rounded.input).toBe(input)
    expect(rounded.layers[1]).toBeLessThan(0.5 * layers[1]!)
  } finally {
    checkpoint.close()
  }
})

test('a device that cannot hold the packed matrices of a GGUF holds them as f16', () => {
  const folder = temporaryFolder()
  const plain = writeRandomRwkv7(join(folder, 'plain.pth'), { channels: 256, ffn: 256 })
  const write = (type: 'Q4_K' | 'F16') =>
    writeAsGguf(join(folder, `${type}.gguf`), readTensors(plain), { architecture: 'rwkv7', type, headType: 'F16' })
  const [packed, halves] = [openCheckpoint(write('Q4_K')), openCheckpoint(write('F16'))]
  try {
    expect(modelBytes(packed, undefined, false)).toEqual(modelBytes(halves))
    const [own, held] = [modelBytes(packed), modelBytes(packed, undefined, false)]
    expect(own.layers[0]).toBeLessThan(0.5 * held.layers[0]!)
  } finally {
    packed.close()
    halves.close()
  }
})
