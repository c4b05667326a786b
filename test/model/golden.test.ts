/** Logits against numpy oracles that share no code with Skein; tools/oracle/make-golden.py made the fixtures. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { availableLevels, cpuReport } from '../../src/backend/cpu/isa.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { QuantChoice } from '../../src/host/model-choice.ts'
import { logitsOfAll } from '../../src/model/run/logits.ts'
import { openTunedState } from '../../src/model/tuned-state-file.ts'

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
  readonly backend: 'reference' | 'cpu'
  readonly isa: string
  readonly quant: QuantChoice
  readonly tolerance: number
}

const LEVELS = cpuReport().problem === null ? availableLevels() : []
/** The files are bf16, so `file` runs the kernels for bf16 weights. */
const WAYS: readonly Way[] = [
  { label: 'reference', backend: 'reference', isa: '', quant: 'file', tolerance: 1e-5 },
  ...LEVELS.flatMap((isa): Way[] => [
    { label: `cpu ${isa} f32`, backend: 'cpu', isa, quant: 'f32', tolerance: 1e-4 },
    { label: `cpu ${isa} bf16`, backend: 'cpu', isa, quant: 'file', tolerance: 1e-4 },
  ]),
]

/** [tokens, V] float64, little-endian. */
function readOracle(name: string): Float64Array {
  return new Float64Array(Uint8Array.from(readFileSync(fixture(name))).buffer)
}

/** Largest difference relative to the largest logit. */
function distance(actual: Float32Array, expected: Float64Array): number {
  if (actual.length !== expected.length) return Number.NaN
  const largest = expected.reduce((max, value) => Math.max(max, Math.abs(value)), 0)
  return actual.reduce((max, value, i) => Math.max(max, Math.abs(value - expected[i]!)), 0) / largest
}

afterEach(() => {
  vi.unstubAllEnvs()
})

describe.each(CASES)('$name', ({ name, vocabSize, tokens }) => {
  test.each(WAYS)('$label gives the logits of the oracle', ({ backend, isa, quant, tolerance }) => {
    vi.stubEnv('SKEIN_ISA', isa)
    const model = fixture(`${name}.pth`)
    const runner = loadRunner({
      model,
      device: backend,
      quant,
      slots: 1,
      maxTokens: 16,
      threads: 2,
    })
    const start = openTunedState(fixture(`${name}-state.pth`), runner.info.stateShape)
    const ids = Int32Array.from(tokens)
    const fromZero = logitsOfAll(runner, ids)
    const fromState = logitsOfAll(runner, ids, start)
    runner.dispose()
    const [zero, tuned] = [readOracle(`${name}.f64`), readOracle(`${name}-state.f64`)]
    expect(zero).toHaveLength(tokens.length * vocabSize)
    expect(distance(fromZero, zero)).toBeLessThan(tolerance)
    expect(distance(fromState, tuned)).toBeLessThan(tolerance)
    // The two oracles are far apart, so neither comparison can succeed with the other.
    expect(distance(fromZero, tuned)).toBeGreaterThan(0.1)
  })
})
