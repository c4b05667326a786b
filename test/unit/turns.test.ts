import { setImmediate as nextTurn } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { Turns } from '../../src/threads/turns.ts'

function work(ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end; );
}

test('tasks of many callers run in order, a few per turn of the event loop', async () => {
  const turns = new Turns()
  const done: number[] = []
  let isOver = false
  const perTurn: number[] = []
  const counting = (async () => {
    for (let last = 0; !isOver; last = done.length) {
      await nextTurn()
      perTurn.push(done.length - last)
    }
  })()
  const all = Array.from({ length: 60 }, (_, i) =>
    turns.do(() => {
      work(1)
      done.push(i)
      return i
    }),
  )
  expect(await Promise.all(all)).toEqual(Array.from({ length: 60 }, (_, i) => i))
  isOver = true
  await counting
  expect(done).toEqual(Array.from({ length: 60 }, (_, i) => i))
  expect(Math.max(...perTurn)).toBeLessThanOrEqual(8)
})

test('the time that callers spend on results counts as well', async () => {
  const turns = new Turns()
  let numDone = 0
  const perTurn: number[] = []
  void turns.do(() => work(3))
  const all = Promise.all(
    Array.from({ length: 40 }, async () => {
      await turns.do(() => {})
      work(1)
      numDone++
    }),
  )
  for (let last = 0; numDone < 40; last = numDone) {
    await nextTurn()
    perTurn.push(numDone - last)
  }
  await all
  expect(Math.max(...perTurn)).toBeLessThanOrEqual(8)
})

test('a failing task does not affect others, and a task that is alone runs at once', async () => {
  const turns = new Turns()
  const failing = turns.do(() => {
    work(10)
    throw new Error('no')
  })
  const next = turns.do(() => 'next')
  await expect(failing).rejects.toThrow('no')
  expect(await next).toBe('next')
  await nextTurn()
  let isDone = false
  void turns.do(() => {
    isDone = true
  })
  expect(isDone).toBe(true)
})
