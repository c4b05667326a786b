import fc from 'fast-check'
import { expect, test } from 'vitest'
import { answerShare, promptShare } from '../../src/engine/prefill-budget.ts'

const pipeline = { maxFlights: 4, feedsDraws: false }
const device = { maxFlights: 2, feedsDraws: true }

test('a device takes everything in one step, a pipeline a part for each of its devices', () => {
  expect([answerShare(device, 100), answerShare(pipeline, 100)]).toEqual([100, 25])
  expect([promptShare(device, 5000, 2048), promptShare(pipeline, 5000, 2048)]).toEqual([2048, 1250])
})

test('prompts are not cut into tiny pieces, and stay within the step', () => {
  expect(promptShare(pipeline, 300, 2048)).toBe(256)
  expect(promptShare(pipeline, 300, 100)).toBe(100)
  expect(promptShare(pipeline, 100_000, 2048)).toBe(2048)
})

/** As the scheduler takes them: rows that wait for nothing, in a fixed order, up to the share. */
function launch(flights: Set<number>[], maxFlights: number, count: number): void {
  if (flights.length === maxFlights) flights.shift()
  const isFlying = (i: number) => flights.some((flight) => flight.has(i))
  const free = Array.from({ length: count }, (_, i) => i).filter((i) => !isFlying(i))
  flights.push(new Set(free.slice(0, answerShare({ maxFlights, feedsDraws: false }, count))))
}

test('whatever came before, every answer has a turn within two rounds of as many steps as devices', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 8 }),
      fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 1, maxLength: 20 }),
      (maxFlights, counts) => {
        const flights: Set<number>[] = []
        for (const count of counts) launch(flights, maxFlights, count)
        const taken = new Set<number>()
        for (let i = 0; i < 2 * maxFlights; i++) {
          launch(flights, maxFlights, counts.at(-1)!)
          for (const answer of flights.at(-1)!) taken.add(answer)
        }
        expect([...taken].filter((answer) => answer < counts.at(-1)!)).toHaveLength(counts.at(-1)!)
      },
    ),
  )
})
