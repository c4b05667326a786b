/** The same weights through every format give the same logits, bit for bit, on the cpu backend. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { chooseLevel } from '../../src/backend/cpu/isa.ts'
import { loadRunner } from '../../src/host/load.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { describeCheckpoint } from '../../src/model/formats/describe.ts'
import { fingerprint } from '../../src/model/formats/fingerprint.ts'
import { unpackBlocks } from '../../src/model/formats/gguf/blocks.ts'
import type { BlockType } from '../../src/model/formats/gguf/types.ts'
import {
  exactIn16Bits,
  flaTensors,
  type NamedValues,
  readTensors,
  stackMixes,
  writeAsGguf,
  writeAsHuggingFace,
  writeAsLegacyTorch,
  writeAsPth,
  writeAsSafetensors,
  writeAsWebRwkv,
} from '../helpers/formats.ts'
import { encodeAs } from '../helpers/gguf.ts'
import { logitsOfAll } from '../helpers/logits.ts'
import { writeRandomRwkv6, writeRandomRwkv7 } from '../helpers/pth.ts'
import { someTokens } from '../helpers/runner.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-formats-'))
afterAll(() => rmSync(folder, { recursive: true }))
const file = (name: string) => join(folder, name)
const TOKENS = someTokens(6, 3)

function logitsOf(model: string): Float32Array {
  const runner = loadRunner({ model, device: 'cpu', quant: 'f32', slots: 1, threads: 1 })
  try {
    return logitsOfAll(runner, TOKENS)
  } finally {
    runner.dispose()
  }
}

/** Enough layers that GGUF's rescaling reaches 4; sizes of whole blocks of every type. */
const SIZES = { layers: 3, channels: 256, ffn: 512, vocab: 512 }
type Writer = (path: string, tensors: readonly NamedValues[]) => string

const RWKV7_WRITERS: Record<string, Writer> = {
  'model.safetensors': writeAsSafetensors,
  'model.st': writeAsWebRwkv,
  'legacy.pth': writeAsLegacyTorch,
  'fla.safetensors': (path, tensors) => writeAsSafetensors(path, flaTensors(tensors)),
  'fla-directory': (path, tensors) => writeAsHuggingFace(path, flaTensors(tensors)),
  'fla-sharded': (path, tensors) => writeAsHuggingFace(path, flaTensors(tensors), { shards: 3 }),
  'fla-stacked': (path, tensors) => writeAsHuggingFace(path, stackMixes(flaTensors(tensors))),
  'f32.gguf': (path, tensors) => writeAsGguf(path, tensors, { architecture: 'rwkv7', type: 'F32' }),
  'f16.gguf': (path, tensors) => writeAsGguf(path, tensors, { architecture: 'rwkv7', type: 'F16' }),
  'bf16.gguf': (path, tensors) => writeAsGguf(path, tensors, { architecture: 'rwkv7', type: 'BF16' }),
}

const RWKV6_WRITERS: Record<string, Writer> = {
  'model.safetensors': writeAsSafetensors,
  'model.st': writeAsWebRwkv,
  'legacy.pth': writeAsLegacyTorch,
  'f32.gguf': (path, tensors) => writeAsGguf(path, tensors, { architecture: 'rwkv6', type: 'F32', rescaleEvery: 1 }),
  'f16.gguf': (path, tensors) => writeAsGguf(path, tensors, { architecture: 'rwkv6', type: 'F16', rescaleEvery: 2 }),
  'bf16.gguf': (path, tensors) =>
    writeAsGguf(path, tensors, { architecture: 'rwkv6', type: 'BF16', separateMixes: true }),
}

const PACKED: Record<'rwkv7' | 'rwkv6', BlockType[]> = {
  rwkv7: ['Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q4_K', 'Q5_K', 'Q6_K'],
  rwkv6: ['Q8_0', 'Q4_K'],
}

describe.each([
  ['rwkv7', writeRandomRwkv7, RWKV7_WRITERS],
  ['rwkv6', writeRandomRwkv6, RWKV6_WRITERS],
] as const)('%s', (architecture, writeRandom, writers) => {
  let tensors: NamedValues[]
  let wanted: Float32Array
  let print: string
  beforeAll(() => {
    const random = readTensors(writeRandom(file(`${architecture}.pth`), SIZES))
    tensors = exactIn16Bits(random.map(withoutConstants))
    const path = writeAsPth(file(`${architecture}-exact.pth`), tensors)
    wanted = logitsOf(path)
    print = fingerprintOf(path)
    expect(new Set(wanted).size).toBeGreaterThan(1000)
  })

  test.each(Object.keys(writers))('%s', (name) => {
    const path = writers[name]!(file(`${architecture}-${name}`), tensors)
    const checkpoint = openCheckpoint(path)
    const summary = describeCheckpoint(checkpoint)
    checkpoint.close()
    expect(summary).toMatchObject({ architecture, missing: [], unexpected: [], wrongShapes: [] })
    const logits = logitsOf(path)
    const hasOtherTypes = /16\.gguf$/.test(name)
    if (hasOtherTypes && chooseLevel() === 'amx') {
      // Products of bf16 by tiles are added in another order than those of f32.
      const sizeOf = (values: ArrayLike<number>) => Math.max(...Array.from(values, Math.abs))
      expect(sizeOf(logits.map((value, i) => value - wanted[i]!))).toBeLessThan(1e-5 * sizeOf(wanted))
    } else {
      expect(logits).toEqual(wanted)
    }
    if (!hasOtherTypes) expect(fingerprintOf(path)).toBe(print)
  })

  // packed.test.ts has the products of every type.
  for (const type of PACKED[architecture])
    test(
      `GGUF ${type} equals its unpacked values`,
      architecture === 'rwkv7' && type === 'Q4_K' ? {} : { tags: 'night' },
      () => {
        const isLarge = /^(?:emb|head|blocks\.\d+\.(?:att|ffn)\.[a-z]+)\.weight$/
        const unpacked = tensors.map((tensor) => {
          if (!isLarge.test(tensor.name)) return tensor
          const values = new Float32Array(tensor.values.length)
          unpackBlocks(type, encodeAs(type, tensor.values), values)
          return { ...tensor, values }
        })
        const path = file(`${architecture}-${type}.gguf`)
        writeAsGguf(path, tensors, { architecture, type })
        const got = logitsOf(path)
        expect(got).toEqual(logitsOf(writeAsPth(file(`${architecture}-${type}.pth`), unpacked)))
        expect(got).not.toEqual(wanted)
      },
    )
})

test('stacked mixes of fla that are not all six are reported as missing', () => {
  const whole = stackMixes(flaTensors(readTensors(writeRandomRwkv7(file('whole.pth'), SIZES))))
  const cut = whole.map((tensor) => {
    if (!tensor.name.endsWith('attn.x_x')) return tensor
    const [, channels = 0] = tensor.shape
    return { ...tensor, shape: [3, channels], values: tensor.values.subarray(0, 3 * channels) }
  })
  const path = writeAsHuggingFace(file('fla-cut'), cut)
  const checkpoint = openCheckpoint(path)
  expect(describeCheckpoint(checkpoint).missing).toContain('blocks.0.att.x_r')
  checkpoint.close()
  expect(() => logitsOf(path)).toThrow(/blocks\.0\.att\.x_r/)
})

/** Norms of ones and zeros would not reveal that two of them were exchanged. */
function withoutConstants(tensor: NamedValues, index: number): NamedValues {
  const { values } = tensor
  if (values.some((value) => value !== values[0])) return tensor
  return { ...tensor, values: values.map((value, i) => value + (((i * index) % 13) - 6) / 32) }
}

function fingerprintOf(path: string): string {
  const checkpoint = openCheckpoint(path)
  try {
    return fingerprint(checkpoint)
  } finally {
    checkpoint.close()
  }
}
