/** A GGUF with packed weights gives the logits of its dequantised weights, in little more memory than the file. */
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { PACKED_BLOCKS } from '../../src/backend/quantised.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { QuantChoice } from '../../src/host/model-choice.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { matrixSource } from '../../src/model/formats/tensor-values.ts'
import { modelBytes, stageBytes } from '../../src/model/run/layer-split.ts'
import { largestRatio } from '../backend/kit.ts'
import { readTensors, writeAsGguf } from '../helpers/formats.ts'
import { logitsOfAll } from '../helpers/logits.ts'
import { writeRandomRwkv6, writeRandomRwkv7 } from '../helpers/pth.ts'
import { someTokens } from '../helpers/runner.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-packed-'))
afterAll(() => rmSync(folder, { recursive: true }))
const SIZES = { layers: 3, channels: 256, ffn: 512, vocab: 512 }
/** Whole tiles: at these sizes padding would be a tenth of the memory. */
const RANKS = { rwkv7: { w: 64, a: 64, v: 64, g: 64 }, rwkv6: { mix: 64, decay: 64 } }
const TOKENS = someTokens(3, 3)
const TYPES = Object.keys(PACKED_BLOCKS) as (keyof typeof PACKED_BLOCKS)[] // Object.keys loses the key type

function run(model: string, quant: QuantChoice, device: 'cpu' | 'reference' = 'cpu') {
  const runner = loadRunner({ model, device, quant, slots: 1, threads: 1 })
  try {
    return { info: runner.info, logits: logitsOfAll(runner, TOKENS) }
  } finally {
    runner.dispose()
  }
}

describe.each([
  ['rwkv7', writeRandomRwkv7, {}],
  // Output matrices of the second layer are times 2, of the third times 4.
  ['rwkv6', writeRandomRwkv6, { rescaleEvery: 1 }],
] as const)('%s', (architecture, writeRandom, options) => {
  const source = join(folder, `${architecture}.pth`)
  const tensors = readTensors(writeRandom(source, { ...SIZES, ranks: RANKS[architecture] }))
  test.each(TYPES)('%s', (type) => {
    const path = join(folder, `${architecture}-${type}.gguf`)
    writeAsGguf(path, tensors, { architecture, type, repeats: 2 ** 13, ...options })
    const own = run(path, 'file')
    const truth = run(path, 'f32', 'reference')
    expect(largestRatio(own.logits, truth.logits)).toBeLessThan(2e-4)
    expect(own.info.weightType).toBe(type)
    expect(own.info.weightBytes).toBeLessThan(1.03 * statSync(path).size)
    // Matrices are unchanged; without a table of blocks the embedding is rounded to f16.
    expect(largestRatio(run(path, 'file', 'reference').logits, truth.logits)).toBeLessThan(1e-3)
    const plain = run(path, 'f16')
    expect(plain.info.weightType).toBe('f16')
    expect(plain.info.weightBytes).toBeGreaterThan(1.1 * own.info.weightBytes)
  })
})

test('what a pipeline divides is what is held', () => {
  const path = join(folder, 'rwkv7-Q4_K.gguf')
  const checkpoint = openCheckpoint(path)
  const bytes = stageBytes(modelBytes(checkpoint), 0, SIZES.layers)
  checkpoint.close()
  const held = run(path, 'file').info.weightBytes
  expect(bytes / held).toBeGreaterThan(0.95)
  expect(bytes / held).toBeLessThan(1.02)
})

test('a scale that a power of two moves out of f16 is refused by name', () => {
  const huge = readTensors(join(folder, 'rwkv6.pth')).map((tensor) =>
    tensor.name === 'blocks.2.att.output.weight' ? { ...tensor, values: tensor.values.map(() => 3e7) } : tensor,
  )
  const path = join(folder, 'huge.gguf')
  writeAsGguf(path, huge, { architecture: 'rwkv6', type: 'Q8_0', rescaleEvery: 1 })
  const checkpoint = openCheckpoint(path)
  const source = matrixSource(checkpoint.tensors.get('blocks.2.att.output.weight')!)
  expect(source.packed?.type).toBe('Q8_0')
  expect(() => source.packed!.readRows(0, 64)).toThrow(/att\.output.*f16; use --quant f32/)
  checkpoint.close()
})
