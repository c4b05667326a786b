/**
 * Draws that are made after the rest of their step has been launched: later draws, with masks that come then, equal to
 * the bit draws made at once with masks known beforehand; remaining draws are made from the kept vectors.
 */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { loadModel } from '../../src/model/run/load-model.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import {
  type BatchRow,
  type Drawn,
  type Flight,
  fedByDraw,
  type RowResult,
  type SampleSpec,
} from '../../src/model/runner.ts'
import { ARCHITECTURES, draw, someTokens, type TestArchitecture, tinyModel } from '../helpers/runner.ts'
import { describeCuda } from './kit.ts'

const SLOTS = 40
const STEPS = 10
const VOCAB = 512
const KINDS: readonly Partial<SampleSpec>[] = [
  { temperature: 0, logprobs: 2 },
  { temperature: 1, topP: 0.9 },
  { frequencyPenalty: 0.5, presencePenalty: 0.3, logprobs: 0 },
  { temperature: 1.5, topK: 20, bias: new Map([[5, 3]]) },
]

function runnerOn(graphs: boolean, architecture: TestArchitecture): ModelRunner {
  const checkpoint = openCheckpoint(tinyModel(architecture))
  const backend = createCudaBackend({ graphs })
  const model = loadModel(checkpoint, backend, {})
  checkpoint.close()
  return new ModelRunner(model, backend, { numSlots: SLOTS, maxTokens: 128, fingerprint: '' })
}

/** Tokens that may follow one, chosen by it. */
function maskAfter(token: number): Uint32Array {
  return Uint32Array.from({ length: VOCAB / 32 }, (_, word) => {
    const bits = Math.imul(token + 1, 0x9e3779b1 + 2 * word) ^ (token << (word % 7))
    return word === token % 16 ? bits | 1 : bits & 0x11111111
  })
}

const isHeld = (slot: number) => slot % 3 !== 1
const specOf = (slot: number, position: number): SampleSpec =>
  draw(slot, { ...KINDS[slot % KINDS.length], position, seed: BigInt(slot) })

function begin(runner: ModelRunner, rows: number): Drawn[] {
  const prompts = Array.from({ length: rows }, (_, slot) => {
    runner.clearSlot(slot)
    runner.resetPenalties(slot, someTokens(2, slot + 1))
    return { slot, tokens: someTokens(2, slot + 1), samples: [specOf(slot, 0)] }
  })
  return runner.step(prompts).map(({ drawn }) => drawn[0]!)
}

/** Every step knows its tokens and its masks. */
function atOnce(runner: ModelRunner, rows: number): Drawn[][] {
  const steps = [begin(runner, rows)]
  while (steps.length < STEPS) {
    const last = steps.at(-1)!
    const results = runner.step(
      last.map(({ token }, slot) => {
        const spec = specOf(slot, steps.length)
        const mask = isHeld(slot) ? maskAfter(token) : undefined
        return { slot, tokens: Int32Array.of(token), samples: [{ ...spec, mask }] }
      }),
    )
    steps.push(results.map(({ drawn }) => drawn[0]!))
  }
  return steps
}

/** Every step is launched before the last one is read, and draws for constrained rows when it has been. */
function later(runner: ModelRunner, rows: number): Drawn[][] {
  const steps = [begin(runner, rows)]
  const known = steps[0]!.map(({ token }, slot) => {
    const mask = isHeld(slot) ? maskAfter(token) : undefined
    return { slot, tokens: Int32Array.of(token), samples: [{ ...specOf(slot, 1), mask }] }
  })
  let flight = runner.launch(known)
  for (let position = 2; position <= STEPS; position++) {
    const before: Flight<RowResult[]> = flight
    if (position < STEPS)
      flight = runner.launch(
        known.map(({ slot }) => ({
          slot,
          tokens: Int32Array.of(fedByDraw(slot)),
          samples: [specOf(slot, position)],
          drawsLater: isHeld(slot),
        })),
      )
    const results = before.result().map(({ drawn }) => drawn[0]!)
    steps.push(results)
    if (position === STEPS) break
    expect(flight.isDone).toBe(false)
    const held = results.map(({ token }, slot) => (isHeld(slot) ? [maskAfter(token)] : []))
    runner.drawLater(held.flat())
  }
  return steps
}

const cases = ARCHITECTURES.flatMap((architecture) => [true, false].map((graphs) => ({ architecture, graphs })))
for (const { architecture, graphs } of cases)
  describeCuda(`later draws of ${architecture}, graphs ${graphs}`, () => {
    let runner: ModelRunner
    beforeAll(() => {
      runner = runnerOn(graphs, architecture)
    })
    afterAll(() => runner.dispose())

    test.each([1, 2, 3, 16, 40])('of %i rows equal those made at once', (rows) => {
      const expected = atOnce(runner, rows)
      const states = [0, rows - 1].map((slot) => runner.readState(slot).result())
      expect(later(runner, rows)).toEqual(expected)
      expect([0, rows - 1].map((slot) => runner.readState(slot).result())).toEqual(states)
      expect(expected.flat().every(({ token }) => token >= 0)).toBe(true)
      // Each is allowed by its mask.
      for (const [position, step] of expected.entries())
        for (const [slot, { token }] of step.entries()) {
          if (position === 0 || !isHeld(slot)) continue
          const mask = maskAfter(expected[position - 1]![slot]!.token)
          expect((mask[token >> 5]! >>> (token & 31)) & 1).toBe(1)
        }
    })

    // Steps have 3 rows or more: a row has the same bits in any of those.
    test('that remain are made in a later step, from the kept vectors', () => {
      const rows = 6
      const [first, second, third] = atOnce(runner, rows)
      begin(runner, rows)
      const masked = (slot: number, token: number, position: number) => ({
        ...specOf(slot, position),
        mask: isHeld(slot) ? maskAfter(token) : undefined,
      })
      const one = runner.launch(
        first!.map(({ token }, slot) => ({ slot, tokens: Int32Array.of(token), samples: [masked(slot, token, 1)] })),
      )
      const two = runner.launch(
        second!.map((_, slot) => ({
          slot,
          tokens: Int32Array.of(fedByDraw(slot)),
          samples: [specOf(slot, 2)],
          drawsLater: isHeld(slot),
        })),
      )
      expect(one.result().map(({ drawn }) => drawn[0])).toEqual(second)
      const held = second!.flatMap(({ token }, slot) => (isHeld(slot) ? [{ token, slot }] : []))
      const isLeft = (slot: number) => slot === 0 || slot === 5
      runner.drawLater(held.map(({ token, slot }) => (isLeft(slot) ? null : maskAfter(token))))
      const drawn = two.result().map((result) => result.drawn[0]!)
      for (const [slot, got] of drawn.entries())
        if (isLeft(slot)) expect(got.token).toBe(-1)
        else expect(got).toEqual(third![slot])
      // One of them beside others that continue, the other in a step that feeds nothing.
      const kept = (slot: number): BatchRow => ({
        slot,
        tokens: Int32Array.of(),
        samples: [masked(slot, second![slot]!.token, 2)],
      })
      const others = [1, 2, 3, 4].map((slot) => ({
        slot,
        tokens: Int32Array.of(fedByDraw(slot)),
        samples: [specOf(slot, 3)],
      }))
      const beside = runner.launch([...others.slice(0, 2), kept(5), ...others.slice(2)]).result()
      expect(beside[2]!.drawn[0]).toEqual(third![5])
      expect(beside.every((result) => result.drawn[0]!.token >= 0)).toBe(true)
      expect(runner.step([kept(0)])[0]!.drawn[0]).toEqual(third![0])
    })

    test('of a row that does not run are not made, whatever its mask', () => {
      const rows = 4
      const first = begin(runner, rows)
      const one = runner.launch(
        first.map(({ token }, slot) => ({ slot, tokens: Int32Array.of(token), samples: [specOf(slot, 1)] })),
      )
      const all = new Set(Array.from({ length: VOCAB }, (_, token) => token))
      const two = runner.launch(
        first.map((_, slot) => ({
          slot,
          tokens: Int32Array.of(fedByDraw(slot)),
          samples: [specOf(slot, 2)],
          drawsLater: true,
          ...(slot === 2 ? { stops: all } : {}),
        })),
      )
      runner.drawLater(one.result().map((_, slot) => maskAfter(slot)))
      const tokens = two.result().map(({ drawn }) => drawn[0]!.token)
      expect(tokens.map((token) => token >= 0)).toEqual([true, true, false, true])
      // They are made once.
      expect(() => runner.drawLater(tokens.map(maskAfter))).toThrow('none left')
    })
  })
