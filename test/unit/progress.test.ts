/** Progress without a terminal: a line every few seconds on stderr, and nothing for short tasks. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { progressBar } from '../../src/cli/terminal/output.ts'

const lines: string[] = []
beforeEach(() => {
  lines.length = 0
  vi.useFakeTimers({ toFake: ['performance'] })
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => lines.push(String(text)) > 0)
  Object.defineProperty(process.stderr, 'isTTY', { value: false, configurable: true })
})
afterEach(() => {
  vi.restoreAllMocks()
  vi.useRealTimers()
})

test('a line every five seconds, with the amount done and the total', () => {
  const progress = progressBar('requests', String)
  for (let done = 0; done <= 100; done++) {
    progress(done, 100)
    vi.advanceTimersByTime(200)
  }
  expect(lines).toEqual(['25', '50', '75'].map((done) => `requests ${done}% ${done}/100\n`))
})

test('no line for short tasks', () => {
  const progress = progressBar('loading')
  for (let done = 0; done <= 100; done += 10) progress(done, 100)
  expect(lines).toEqual([])
})
