/** Runners over a tiny random model made at test time, on each backend. */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { sampleSpec } from '../../src/bench/plain-request.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { QuantChoice } from '../../src/host/model-choice.ts'
import type { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { SpeculateChoice } from '../../src/model/run/speculate-choice.ts'
import type { SampleSpec } from '../../src/model/runner.ts'
import { writeRandomRwkv6, writeRandomRwkv7 } from './pth.ts'

export const BACKENDS = ['reference', 'cpu'] as const
export const ARCHITECTURES = ['rwkv7', 'rwkv7a', 'rwkv6'] as const
export type TestArchitecture = (typeof ARCHITECTURES)[number]

const RANKS = { rwkv7: { ranks: { v: 32 } }, rwkv7a: { ranks: { v: 32, s: 16 } }, rwkv6: {} }
const paths = new Map<TestArchitecture, string>()

/** Three layers, 128 channels, 512 tokens, f32; RWKV-7 with ranks that few-rows.cu accepts. */
export function tinyModel(architecture: TestArchitecture = 'rwkv7'): string {
  const known = paths.get(architecture)
  if (known !== undefined) return known
  const write = architecture === 'rwkv6' ? writeRandomRwkv6 : writeRandomRwkv7
  const path = write(join(mkdtempSync(join(tmpdir(), 'skein-')), 'tiny.pth'), { layers: 3, ...RANKS[architecture] })
  paths.set(architecture, path)
  return path
}

/** On webgpu after prepareDevice. */
export function tinyRunner(
  device: (typeof BACKENDS)[number] | 'webgpu',
  options: {
    slots?: number
    maxTokens?: number
    quant?: QuantChoice
    wkv?: 'fp16'
    threads?: number
    speculate?: SpeculateChoice | undefined
    architecture?: TestArchitecture
  } = {},
): ModelRunner {
  const { architecture, ...choice } = options
  return loadRunner({ model: tinyModel(architecture), device, slots: 40, maxTokens: 256, ...choice })
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
  return sampleSpec({ slot, seed: 7n, ...fields })
}
