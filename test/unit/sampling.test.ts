import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { createBatch, SAMPLE_INTS, SampleFloat, SampleInt } from '../../src/backend/batch.ts'
import { sampleSpec } from '../../src/bench/plain-request.ts'
import { packRows } from '../../src/model/run/step-packing.ts'
import { SAMPLING_ROWS } from '../../src/sampling.ts'

const KERNELS = join(import.meta.dirname, '../../kernels')

/** Columns of an enum that begins with `first`, in order, as written in sampling.ts. */
function enumOf(file: string, first: string): string[] {
  const text = readFileSync(join(KERNELS, file), 'utf8')
  const [, body = ''] = new RegExp(`\\{\\s*(${first}[^}]*)\\}`).exec(text) ?? []
  const names = body.split(',').map((name) => name.trim().replace(/^k/, ''))
  return names.map((name) => name.charAt(0).toLowerCase() + name.slice(1))
}

/** By column; columns start at 0 without gaps. */
function columnsOf(columns: Readonly<Record<string, number>>): string[] {
  const entries = Object.entries(columns).sort(([, a], [, b]) => a - b)
  expect(entries.map(([, column]) => column)).toEqual([...entries.keys()])
  return entries.map(([name]) => name)
}

test.each(['cpu/draw.h', 'cuda/sample-scores.cuh'])('the columns of %s are those of sampling.ts', (file) => {
  expect(enumOf(file, 'kTemperature')).toEqual([...columnsOf(SampleFloat), 'sampleFloats'])
  const ints = columnsOf(SampleInt)
  expect(enumOf(file, 'kTopK').slice(0, ints.length)).toEqual(ints)
})

test('every draw has its own values in its columns, whoever drew there before', () => {
  const batch = createBatch({ tokens: 4, rows: 4, logits: 4, samples: 4 })
  const specs = [0, 1, 2].map((slot) => {
    // Every number is different, and exact in 32 bits.
    const numbers = SAMPLING_ROWS.map(([name], i) => [name, slot + i / 16])
    return sampleSpec({ slot, ...Object.fromEntries(numbers), topK: 10 + slot })
  })
  for (const order of [[0, 1, 2], [0, 1, 2], [1, 2], [2, 0, 1], [0]]) {
    const drawing = order.map((slot) => specs[slot]!)
    packRows(
      batch,
      drawing.map((spec) => ({ slot: spec.slot, tokens: Int32Array.of(1), samples: [spec] })),
    )
    for (const [s, spec] of drawing.entries()) {
      const floats = batch.sampleFloats.subarray(s * Object.keys(SampleFloat).length)
      // The columns have the names of the numbers.
      for (const [name, column] of Object.entries(SampleFloat))
        expect(floats[column], name).toBe(spec[name as keyof typeof SampleFloat])
      expect(batch.sampleInts[s * SAMPLE_INTS + SampleInt.topK]).toBe(spec.topK)
    }
  }
})
