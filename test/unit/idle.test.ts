import { setTimeout as delay } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { whenIdle } from '../../src/threads/idle.ts'

test('pieces wait while the event loop is busy, and are done one at a time when it is not', async () => {
  let [left, isBusy] = [3, true]
  const work = () => {
    for (const end = performance.now() + 5; performance.now() < end; );
    if (isBusy) setImmediate(work)
  }
  work()
  await new Promise(setImmediate)
  let asked = 0
  whenIdle(() => {
    asked++
    return left === 0 ? null : () => left--
  })
  await delay(300)
  expect(left).toBe(3)
  isBusy = false
  while (left > 0) await delay(10)
  await delay(200)
  // Once more to hear that there is none, and not again.
  expect(asked).toBe(4)
})
