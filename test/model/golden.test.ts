/** Logits against numpy oracles that share no code with Skein; tools/oracle/make-golden.py made the fixtures. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { availableLevels, cpuReport } from '../../src/backend/cpu/isa.ts'
import { cudaReport } from '../../src/backend/cuda/report.ts'
import { webgpuReport } from '../../src/backend/webgpu/adapter.ts'
import { prepareDevice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { QuantChoice } from '../../src/host/model-choice.ts'
import { logitsOf } from '../../src/model/run/logits.ts'
import { openTunedState } from '../../src/model/tuned-state-file.ts'
import { largestRatio } from '../backend/kit.ts'
import { IS_SLOW } from '../helpers/slow.ts'
import { IS_SOFTWARE_GPU, WEBGPU_PROBLEM } from '../helpers/webgpu.ts'

const FIXTURES = join(import.meta.dirname, '../fixtures')
const fixture = (name: string) => join(FIXTURES, name)

interface GoldenCase {
  readonly name: string
  readonly vocabSize: number
  readonly tokens: readonly number[]
}

// tools/oracle/make-golden.py writes this shape.
const CASES = JSON.parse(readFileSync(fixture('golden.json'), 'utf8')) as GoldenCase[]

interface Way {
  readonly label: string
  readonly backend: 'reference' | 'cpu' | 'webgpu' | 'cuda:0'
  readonly isa: string
  readonly quant: QuantChoice
  readonly tolerance: number
}

const ADAPTER = (await webgpuReport()).adapters[0]
/** Products by matrix units round inputs to f16. */
const WEBGPU_TOLERANCE = ADAPTER?.features.includes('chromium-experimental-subgroup-matrix') ? 5e-3 : 1e-4
const WEBGPU = { label: 'webgpu bf16', backend: 'webgpu', isa: '', quant: 'file', tolerance: WEBGPU_TOLERANCE } as const

/** Its kernels are for heads of 64 channels, which one case has. */
const CUDA_CASE = 'golden-rwkv7a'
const CUDA = { label: 'cuda', backend: 'cuda:0', isa: '', quant: 'file', tolerance: 5e-3 } as const

const LEVELS = cpuReport().problem === null ? availableLevels() : []
/** The files are bf16, so `file` runs the kernels for bf16 weights. */
const WAYS: readonly Way[] = [
  { label: 'reference', backend: 'reference', isa: '', quant: 'file', tolerance: 1e-5 },
  ...LEVELS.flatMap((isa): Way[] => [
    { label: `cpu ${isa} f32`, backend: 'cpu', isa, quant: 'f32', tolerance: 1e-4 },
    { label: `cpu ${isa} bf16`, backend: 'cpu', isa, quant: 'file', tolerance: 1e-4 },
  ]),
  ...(WEBGPU_PROBLEM === null ? [WEBGPU] : []),
  ...(hasGpu() ? [CUDA] : []),
]

function hasGpu(): boolean {
  const { hasCard, problems } = cudaReport()
  return hasCard && problems.length === 0
}

type Logits = Float64Array

/** [tokens, V] float64, little-endian. */
function readOracle(name: string): Logits {
  return new Float64Array(Uint8Array.from(readFileSync(fixture(name))).buffer)
}

afterEach(() => {
  vi.unstubAllEnvs()
})

describe.each(CASES)('$name', ({ name, vocabSize, tokens }) => {
  const ways = WAYS.filter(({ backend }) => backend !== CUDA.backend || name === CUDA_CASE)
  test.each(ways)('$label gives the logits of the oracle', async ({ backend, isa, quant, tolerance }) => {
    vi.stubEnv('SKEIN_ISA', isa)
    await prepareDevice({ device: backend })
    const model = fixture(`${name}.pth`)
    const runner = loadRunner({ model, device: backend, quant, slots: 1, maxTokens: 16, threads: 2 })
    const start = openTunedState(fixture(`${name}-state.pth`), runner.info.stateShape)
    // A software GPU takes a second for 16 tokens.
    const isShort = backend === 'webgpu' && IS_SOFTWARE_GPU && !IS_SLOW
    const ids = Int32Array.from(isShort ? tokens.slice(0, 9) : tokens)
    const fromZero = await logitsOf(runner, ids, { isAll: true })
    const fromState = await logitsOf(runner, ids, { isAll: true, start })
    runner.dispose()
    const oracles = [readOracle(`${name}.f64`), readOracle(`${name}-state.f64`)] as const
    expect(oracles[0]).toHaveLength(tokens.length * vocabSize)
    const [zero, tuned] = oracles.map((values) => values.subarray(0, ids.length * vocabSize)) as [Logits, Logits]
    expect(largestRatio(fromZero, zero)).toBeLessThan(tolerance)
    expect(largestRatio(fromState, tuned)).toBeLessThan(tolerance)
    // The two oracles are far apart, so neither comparison can succeed with the other.
    expect(largestRatio(fromZero, tuned)).toBeGreaterThan(0.1)
  })
})
