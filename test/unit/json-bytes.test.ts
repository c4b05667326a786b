import { setImmediate } from 'node:timers/promises'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { CompletionLogprobsBuilder } from '../../src/api/openai/logprobs.ts'
import type { TokenText } from '../../src/engine/messages.ts'
import { jsonBytes } from '../../src/threads/json-bytes.ts'

test('is the text of JSON.stringify', async () => {
  const value = fc.jsonValue({ maxDepth: 8 })
  await fc.assert(
    fc.asyncProperty(value, fc.integer({ min: 0, max: 100 }), async (one, length) => {
      const list = Array.from({ length }, () => one)
      for (const given of [one, list, { one, list: [{ list }], none: undefined }])
        expect(Buffer.concat(await jsonBytes(given)).toString()).toBe(JSON.stringify(given))
    }),
    { numRuns: 50 },
  )
})

/** The number of turns of the event loop until `work` was done. */
async function turnsOf(work: Promise<unknown>): Promise<number> {
  let [count, isDone] = [0, false]
  void work.then(() => {
    isDone = true
  })
  while (!isDone) {
    await setImmediate()
    count++
  }
  return count
}

const bytes = Buffer.from('x')
const token: TokenText = {
  token: 1,
  logprob: -1,
  bytes,
  top: Array.from({ length: 20 }, (_, i) => ({ token: i, logprob: -i })),
  topBytes: Array.from({ length: 20 }, () => bytes),
}

test('others continue while thousands of log-probabilities are rendered and written', async () => {
  const tokens = Array.from({ length: 6000 }, () => token)
  const rendered = new CompletionLogprobsBuilder().add(tokens, () => bytes)
  // Four milliseconds per turn: rendering took some 100 ms on a quiet machine.
  expect(await turnsOf(rendered)).toBeGreaterThan(2)
  const { text_offset } = await rendered
  expect(text_offset).toEqual(tokens.map((_, i) => i))
  const reply = { choices: [{ logprobs: { content: tokens } }] }
  expect(await turnsOf(jsonBytes(reply))).toBeGreaterThan(2)
})
