/** Runners over a tiny random model made at test time, on each backend. */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { loadRunner, type QuantChoice } from '../../src/load.ts'
import type { ModelRunner } from '../../src/model/model-runner.ts'
import type { SampleSpec } from '../../src/model/runner.ts'
import { writeRandomRwkv7 } from './pth.ts'

let path: string | null = null

/** Three layers, 128 channels, 512 tokens, f32. */
export function tinyModel(): string {
  path ??= writeRandomRwkv7(join(mkdtempSync(join(tmpdir(), 'skein-')), 'tiny.pth'), { layers: 3 })
  return path
}

export const BACKENDS = ['reference', 'cpu'] as const

export function tinyRunner(
  backend: (typeof BACKENDS)[number],
  options: { slots?: number; maxTokens?: number; quant?: QuantChoice; threads?: number } = {},
): ModelRunner {
  return loadRunner({ model: tinyModel(), backend, slots: 40, maxTokens: 256, ...options })
}

/** Token ids below the tiny vocabulary, the same for the same seed. */
export function someTokens(count: number, seed: number): Int32Array {
  let state = (seed * 2_654_435_761) >>> 0
  return Int32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return 1 + ((state >>> 8) % 511)
  })
}

export function draw(slot: number, fields: Partial<SampleSpec> = {}): SampleSpec {
  return {
    slot,
    temperature: 1,
    topK: 0,
    topP: 1,
    minP: 0,
    presencePenalty: 0,
    frequencyPenalty: 0,
    penaltyDecay: 1,
    repetitionPenalty: 1,
    seed: 7n,
    position: 0,
    stream: 0,
    logprobs: null,
    bias: null,
    ...fields,
  }
}
