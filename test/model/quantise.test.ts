import { mkdtempSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { decodeRows } from '../../src/backend/quantised.ts'
import { quantiseRows } from '../../src/backend/reference/quantise.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { QuantChoice } from '../../src/host/model-choice.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { describeCheckpoint } from '../../src/model/formats/describe.ts'
import { renamed } from '../../src/model/formats/entry-views.ts'
import { quantisedSourceOf } from '../../src/model/formats/safetensors/quantised.ts'
import { readFloats } from '../../src/model/formats/tensor-values.ts'
import { type Quantiser, quantiseCheckpoint } from '../../src/model/quantise.ts'
import { logitsOfAll } from '../helpers/logits.ts'
import { ARCHITECTURES, BACKENDS, someTokens, type TestArchitecture, tinyModel } from '../helpers/runner.ts'

const SCHEMES = [
  ['int8', 'i8'],
  ['q4', 'q4'],
  ['nf4', 'nf4'],
] as const

/** By the definition of the rounding: writing a file needs no kernels. */
const quantise: Quantiser = (type, source, start, end) => {
  const bytes = source.readRows(start, end).slice()
  return quantiseRows(type, new Float32Array(bytes.buffer), source.columns)
}

function quantisedFile(scheme: 'i8' | 'q4' | 'nf4', architecture?: TestArchitecture): string {
  const path = join(mkdtempSync(join(tmpdir(), 'skein-')), 'tiny.safetensors')
  const checkpoint = openCheckpoint(tinyModel(architecture))
  quantiseCheckpoint(checkpoint, path, { scheme, quantise })
  checkpoint.close()
  return path
}

function logitsOf(model: string, backend: (typeof BACKENDS)[number], quant: QuantChoice) {
  const runner = loadRunner({ model, device: backend, quant, slots: 1, maxTokens: 64 })
  const logits = logitsOfAll(runner, someTokens(4, 4))
  const { weightType, weightBytes } = runner.info
  runner.dispose()
  return { logits, weightType, weightBytes }
}

describe.each(SCHEMES)('a file quantised to %s', (quant, scheme) => {
  test.each(ARCHITECTURES)('of %s equals quantising at load', (architecture) => {
    const path = quantisedFile(scheme, architecture)
    for (const backend of BACKENDS) {
      const filed = logitsOf(path, backend, 'file')
      expect(filed).toEqual(logitsOf(tinyModel(architecture), backend, quant))
      expect(filed).toEqual(logitsOf(path, backend, quant))
      expect(filed.weightType).toBe(scheme)
    }
  })

  test('is smaller, and names its type', () => {
    const path = quantisedFile(scheme)
    const [original, checkpoint] = [openCheckpoint(tinyModel()), openCheckpoint(path)]
    const { dtypes, numParameters, missing, unexpected } = describeCheckpoint(checkpoint)
    expect(numParameters).toBe(describeCheckpoint(original).numParameters)
    expect([missing, unexpected]).toEqual([[], []])
    const tensors = scheme === 'i8' ? 19 : 18 // six matrices of three layers, and the head
    expect(dtypes).toContainEqual({ dtype: scheme, tensors })
    expect(statSync(path).size).toBeLessThan(0.6 * original.fileBytes)
    original.close()
    checkpoint.close()
  })

  test('decodes, whole and in parts, to the rounded values', () => {
    const [original, checkpoint] = [openCheckpoint(tinyModel()), openCheckpoint(quantisedFile(scheme))]
    const name = 'blocks.1.ffn.key.weight'
    const entry = checkpoint.tensors.get(name)!
    const weights = readFloats(original.tensors.get(name)!)
    const wanted = decodeRows(scheme, quantiseRows(scheme, weights, 128), 128)
    expect(readFloats(entry)).toEqual(wanted)
    for (const [start, end] of [
      [0, 1],
      [127, 129],
      [300, 1000],
      [wanted.length - 5, wanted.length],
    ] as const) {
      const part = entry.read(start, end).slice()
      expect(new Float32Array(part.buffer)).toEqual(wanted.slice(start, end))
    }
    expect(() => entry.read(0, wanted.length + 1)).toThrow(/elements/)
    expect(quantisedSourceOf(entry)?.type).toBe(scheme)
    expect(quantisedSourceOf(renamed(entry, 'other'))).toBeUndefined()
    original.close()
    checkpoint.close()
  })

  test('is not quantised again', () => {
    const checkpoint = openCheckpoint(quantisedFile(scheme))
    expect(() => quantiseCheckpoint(checkpoint, '/nowhere/x', { scheme, quantise })).toThrow(
      /is quantised already.*give the original file/,
    )
    checkpoint.close()
  })
})

describe('damaged files and other schemes are refused by name', () => {
  const file = readFileSync(quantisedFile('q4'))
  const headerBytes = Number(file.readBigUInt64LE())

  /** The file with its header changed to another text with the same meaning for the rest. */
  function opened(change: (header: Record<string, Record<string, unknown>>) => void) {
    const header = JSON.parse(file.toString('utf8', 8, 8 + headerBytes))
    change(header)
    const json = Buffer.from(JSON.stringify(header))
    const length = Buffer.alloc(8)
    length.writeBigUInt64LE(BigInt(json.length))
    const path = join(mkdtempSync(join(tmpdir(), 'skein-')), 'changed.safetensors')
    writeFileSync(path, Buffer.concat([length, json, file.subarray(8 + headerBytes)]))
    return () => openCheckpoint(path).close()
  }
  const key = 'blocks.0.att.key.weight'

  test.each([
    [
      'another scheme',
      (h) => {
        h.__metadata__!['skein.quantisation'] = 'q3'
      },
      /quantised as q3, version 1/,
    ],
    [
      'a later version',
      (h) => {
        h.__metadata__!['skein.quantisation.version'] = '2'
      },
      /this Skein reads version 1/,
    ],
    [
      'no version',
      (h) => {
        delete h.__metadata__!['skein.quantisation.version']
      },
      /version none/,
    ],
    [
      'no scheme',
      (h) => {
        h.__metadata__ = {}
      },
      /type U8; weights are F32, F16 or BF16/,
    ],
    [
      '8 bits where 4 belong',
      (h) => {
        h.__metadata__!['skein.quantisation'] = 'i8'
      },
      /no matrix of i8 weights/,
    ],
    [
      'a scale of another shape',
      (h) => {
        h[`${key}.scale`]!.shape = [64, 8]
      },
      /needs blocks.0.att.key.weight.scale in BF16 of shape \[128, 4\]/,
    ],
    [
      'no scale',
      (h) => {
        h.other = h[`${key}.scale`]!
        delete h[`${key}.scale`]
      },
      /needs blocks.0.att.key.weight.scale/,
    ],
    [
      'a vector of bytes',
      (h) => {
        h[key]!.shape = [128 * 64]
      },
      /is no matrix of q4 weights/,
    ],
  ] as [string, Parameters<typeof opened>[0], RegExp][])('%s', (_, change, message) => {
    expect(opened(() => {})).not.toThrow()
    expect(opened(change)).toThrow(message)
  })
})
