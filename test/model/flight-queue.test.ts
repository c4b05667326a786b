/** What a queue of steps still references after they have ended. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import type { Program } from '../../src/backend/backend.ts'
import { FlightQueue } from '../../src/model/run/flight-queue.ts'
import { type BatchRow, fedByDraw } from '../../src/model/runner.ts'
import { draw } from '../helpers/runner.ts'

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

const CAPACITY = { tokens: 4, rows: 1, logits: 1, samples: 1 }

/** Draws token 3 each time. */
const PROGRAM: Program = {
  run: () => {},
  flights: {
    max: 2,
    feedsDraws: true,
    launch: (batch) => ({
      isDone: true,
      wait: () => {
        batch.sampled[0] = 3
      },
    }),
  },
  dispose: () => {},
}

function rowAt(position: number): BatchRow {
  const token = position === 0 ? 1 : fedByDraw(0)
  return { slot: 0, tokens: Int32Array.of(token), samples: [draw(0, { position })], stops: new Set([2]) }
}

test('finished steps are not kept', async () => {
  const none = () => {
    throw new Error('not read here')
  }
  const queue = new FlightQueue(PROGRAM, CAPACITY, Int32Array.of(0), { logits: none, hidden: none })
  const held: WeakRef<object>[] = []
  const launch = (position: number) => {
    const row = rowAt(position)
    held.push(new WeakRef(row.stops!))
    return queue.launch([row])
  }
  let last = launch(0)
  for (let position = 1; position < 20; position++) {
    const flight = launch(position)
    expect(last.isDone).toBe(true)
    expect(last.result()[0]!.drawn[0]!.token).toBe(3)
    last = flight
  }
  // A WeakRef keeps its target until the turn of the event loop ends.
  await new Promise((resolve) => setImmediate(resolve))
  collectGarbage()
  const numHeld = held.filter((one) => one.deref() !== undefined).length
  expect(numHeld).toBeLessThanOrEqual(2)
  expect(last.result()[0]!.drawn[0]!.token).toBe(3)
})
