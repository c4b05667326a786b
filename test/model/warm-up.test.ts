import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Program } from '../../src/backend/backend.ts'
import { type ErrorCode, SkeinError } from '../../src/errors.ts'
import { loadRunner } from '../../src/host/load.ts'
import { warmUp } from '../../src/model/run/warm-up.ts'
import type { BatchRow, RowResult, Runner } from '../../src/model/runner.ts'
import { tinyModel } from '../helpers/runner.ts'

let runner: Runner
beforeAll(() => {
  runner = loadRunner({ model: tinyModel(), device: 'reference', slots: 4, maxTokens: 64 })
})
afterAll(() => runner.dispose())

/** Warms up a device whose replayed steps draw another token if `isWrong` says so; returns its warnings. */
function warned(isWrong: (rows: readonly BatchRow[]) => boolean, run: (rows: number) => void = () => {}) {
  const preparations = [1, 4, 0].map((rows) => ({ rows, run: () => run(rows) }))
  const program = { usesGraphs: true, preparations: () => preparations } as unknown as Program
  const step = (rows: readonly BatchRow[]): RowResult[] => {
    const results = [...runner.step(rows)]
    if (!program.usesGraphs || !isWrong(rows)) return results
    return results.map((result) => ({
      ...result,
      drawn: result.drawn.map((one) => ({ ...one, token: one.token ^ 1 })),
    }))
  }
  const replaying = new Proxy(runner, {
    get(target, name) {
      if (name === 'step') return step
      const value: unknown = Reflect.get(target, name, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  const warnings: string[] = []
  warmUp(replaying, program, { onWarning: (message) => warnings.push(message) })
  return { warnings, usesGraphs: program.usesGraphs }
}

test('if replayed steps are right, replay stays on', () => {
  expect(warned(() => false)).toEqual({ warnings: [], usesGraphs: true })
})

test.each([
  ['a prompt', (rows: readonly BatchRow[]) => rows[0]!.tokens.length > 1],
  ['one row', (rows: readonly BatchRow[]) => rows.length === 1 && rows[0]!.tokens.length === 1],
  ['3 rows and 4 rows', (rows: readonly BatchRow[]) => rows.length > 1],
])('%s replayed wrongly is reported, and replay is off from then on', (what, isWrong) => {
  const { warnings, usesGraphs } = warned(isWrong)
  expect(warnings).toEqual([expect.stringContaining(`replayed steps of ${what} differ`)])
  expect(usesGraphs).toBe(false)
})

const fails = (code: ErrorCode, where: number) => (rows: number) => {
  if (rows === where) throw new SkeinError(code, 'no room')
}

test.each(['out_of_memory', 'internal'] as const)(
  'without a graph (%s) steps are launched one by one, and that is said',
  (code) => {
    const { warnings, usesGraphs } = warned(() => false, fails(code, 4))
    expect(warnings).toEqual([
      'no graph of a step of 4 rows can be made: no room; steps are launched one by one from now on, which is slower',
    ])
    expect(usesGraphs).toBe(false)
  },
)

test.each([
  ['kernel_failed', 4],
  ['backend_unavailable', 4],
  ['out_of_memory', 0],
] as const)('%s in what is made for %i rows ends the start', (code, rows) => {
  expect(() => warned(() => false, fails(code, rows))).toThrow('no room')
})
