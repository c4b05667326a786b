/**
 * Overlapped steps of a runner compared with single steps: rows that feed the draws of the previous step give the same
 * tokens and states as rows that feed the tokens themselves, whenever the steps run; stopped rows change nothing.
 */
import { expect, test } from 'vitest'
import { type BatchRow, type Flight, fedByDraw, type Runner } from '../../src/model/runner.ts'
import { DeferredRunner } from '../helpers/deferred-runner.ts'
import { BACKENDS, draw, someTokens, tinyRunner } from '../helpers/runner.ts'

const STEPS = 6
const ROWS = 3

function prompts(): BatchRow[] {
  return Array.from({ length: ROWS }, (_, slot) => ({
    slot,
    tokens: someTokens(4 + slot, slot + 1),
    samples: [draw(slot, { presencePenalty: 0.5, logprobs: slot === 1 ? 2 : null })],
  }))
}

function next(slot: number, token: number, position: number, stops: number[] = []): BatchRow {
  const spec = draw(slot, { position, presencePenalty: 0.5 })
  return { slot, tokens: Int32Array.of(token), samples: [spec], stops: new Set(stops) }
}

/** A requested state; a late one arrives after enough polls. */
function arrived<T>(flight: Flight<T>): T {
  while (!flight.isDone);
  return flight.result()
}

function plain(runner: Runner): number[][] {
  const tokens = [runner.step(prompts()).map(({ drawn }) => drawn[0]!.token)]
  for (let position = 1; position < STEPS; position++) {
    const rows = tokens.at(-1)!.map((token, slot) => next(slot, token, position))
    tokens.push(runner.step(rows).map(({ drawn }) => drawn[0]!.token))
  }
  return tokens
}

test.each(BACKENDS)('%s: steps that feed draws equal steps that feed tokens', (device) => {
  const runner = tinyRunner(device)
  const oracle = tinyRunner(device)
  const deferred = new DeferredRunner(runner)
  for (let slot = 0; slot < ROWS; slot++) for (const one of [deferred, oracle]) one.clearSlot(slot)
  const expected = plain(oracle)
  const flights = [deferred.launch(prompts())]
  const tokens: number[][] = []
  for (let position = 1; position < STEPS; position++) {
    flights.push(
      // In another order than the draws were made.
      deferred.launch(
        [2, 0, 1].map((slot, i) => {
          const s = position === 1 ? slot : i
          return next(slot, fedByDraw(s), position)
        }),
      ),
    )
    tokens.push(
      flights
        .shift()!
        .result()
        .map(({ drawn }) => drawn[0]!.token),
    )
  }
  tokens.push(
    flights
      .shift()!
      .result()
      .map(({ drawn }) => drawn[0]!.token),
  )
  const inSlotOrder = tokens.map((row, t) => (t === 0 ? row : [row[1], row[2], row[0]]))
  expect(inSlotOrder).toEqual(expected)
  for (let slot = 0; slot < ROWS; slot++) {
    expect(arrived(deferred.readState(slot))).toEqual(oracle.readState(slot).result())
  }
  deferred.dispose()
  oracle.dispose()
})

test.each(BACKENDS)('%s: a stopped row leaves its state unchanged, and other rows run', (device) => {
  const runner = new DeferredRunner(tinyRunner(device))
  const oracle = tinyRunner(device)
  for (let slot = 0; slot < ROWS; slot++) for (const one of [runner, oracle]) one.clearSlot(slot)
  const [first] = plain(oracle)
  const before = runner.launch(prompts())
  const after = runner.launch([0, 1, 2].map((slot) => next(slot, fedByDraw(slot), 1, [first![1]!])))
  before.result()
  const [a, stopped, c] = after.result().map(({ drawn }) => drawn[0]!.token)
  expect(stopped).toBe(-1)
  expect([a, c].every((token) => token! >= 0)).toBe(true)
  // The state after its prompt alone.
  const alone = tinyRunner(device)
  alone.clearSlot(1)
  alone.step([prompts()[1]!])
  expect(arrived(runner.readState(1))).toEqual(alone.readState(1).result())
  // Its penalty counts too: the same draw again gives what it would have given.
  const again = (one: Runner) => one.step([next(1, first![1]!, 1)])[0]!.drawn[0]!.token
  expect(again(runner)).toBe(again(alone))
  for (const one of [runner, oracle, alone]) one.dispose()
})

test('a draw that the previous step did not make is refused', () => {
  const runner = tinyRunner('reference')
  runner.clearSlot(0)
  expect(() => runner.step([next(0, fedByDraw(0), 0)])).toThrow(/feeds draw 0/)
  runner.dispose()
})
