/**
 * What fewer bits cost trained weights: bounds for the demo model, and for any other models that SKEIN_TRAINED names (files,
 * with commas between; `npx vitest run test/model/trained.test.ts` then prints their figures, too). Random weights are
 * tested elsewhere; trained ones have outliers, and distributions that are not flat.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { PACKED_BLOCKS } from '../../src/backend/quantised.ts'
import { compareLogits, drawTexts, type QualityRow } from '../../src/bench/quality.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { QuantChoice } from '../../src/host/model-choice.ts'
import type { Runner } from '../../src/model/runner.ts'
import { readTensors, writeAsGguf } from '../helpers/formats.ts'

const OTHERS = process.env.SKEIN_TRAINED?.split(',') ?? []
const TOKENS = OTHERS.length > 0 ? 1024 : 512
const TEXTS = 8
const folder = mkdtempSync(join(tmpdir(), 'skein-trained-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** RMS error of the logits, share of other best tokens, divergence, perplexity. */
const BOUNDS: Partial<Record<QuantChoice, readonly [number, number, number, number]>> = {
  f16: [5e-4, 2e-3, 1e-6, 1e-4],
  int8: [1.5e-2, 0.02, 4e-4, 3e-3],
  q4: [0.11, 0.12, 2e-2, 3e-2],
  nf4: [0.12, 0.13, 3e-2, 4e-2],
}
/** Of blocks as in the file, against the file's own numbers. */
const OF_BLOCKS = [1e-4, 2e-3, 1e-7, 1e-4] as const
const ALL = Object.keys(PACKED_BLOCKS) as (keyof typeof PACKED_BLOCKS)[] // Object.keys loses the key type
/** They are rounded slowly. */
const PACKED = OTHERS.length > 0 || process.env.SKEIN_SLOW ? ALL : (['Q4_K'] as const)

function open(model: string, quant: QuantChoice): Runner {
  return loadRunner({ model, device: 'cpu', quant, slots: TEXTS, threads: 1 })
}

/** Over texts that the exact model writes, each from another first token. */
async function compare(exact: Runner, others: readonly Runner[]): Promise<QualityRow[]> {
  const begin = Array.from({ length: TEXTS }, (_, i) => Int32Array.of(1 + ((i * 331) % (exact.info.vocabSize - 1))))
  try {
    return await compareLogits(exact, others, drawTexts(exact, begin, TOKENS))
  } finally {
    for (const runner of [exact, ...others]) runner.dispose()
  }
}

function check(name: string, row: QualityRow, bounds: readonly [number, number, number, number]): void {
  const { rmsError, argmaxAgreement, divergence, perplexityLoss } = row
  const found = [rmsError, 1 - argmaxAgreement, divergence, Math.abs(perplexityLoss)]
  if (OTHERS.length > 0) process.stdout.write(`${name}: ${found.map((one) => one.toExponential(2)).join(', ')}\n`)
  for (const [i, bound] of bounds.entries()) expect(found[i], `${name}, figure ${i}`).toBeLessThan(bound)
}

describe.each([DEMO_MODEL, ...OTHERS])(
  '%s',
  (model) => {
    const schemes = Object.entries(BOUNDS) as [QuantChoice, (typeof BOUNDS)['f16'] & {}][] // Object.entries loses the key type
    test('fewer bits', async () => {
      const rows = await compare(
        open(model, 'f32'),
        schemes.map(([quant]) => open(model, quant)),
      )
      for (const [i, [quant, bounds]] of schemes.entries()) check(`${basename(model)} ${quant}`, rows[i]!, bounds)
    })

    const tensors = readTensors(model)
    const channels = tensors.find(({ name }) => name === 'emb.weight')!.shape[1]!
    // Larger blocks than a row are not in a file.
    test.runIf(channels % 256 === 0).each(PACKED)('a GGUF of %s', async (type) => {
      const path = writeAsGguf(join(folder, `${basename(model)}-${type}.gguf`), tensors, {
        architecture: 'rwkv7',
        type,
      }) as string
      check(`${basename(model)} ${type}`, (await compare(open(path, 'f32'), [open(path, 'file')]))[0]!, OF_BLOCKS)
      if (OTHERS.length === 0) return
      const [row] = await compare(open(model, 'f32'), [open(path, 'file')])
      check(`${basename(model)} ${type} against the weights before rounding`, row!, [1, 1, 1, 1])
    })
  },
  600_000,
)
