/** Which tokens of an answer a conversation keeps, wherever a stop string cuts it. */
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { LiveRequest } from '../../src/engine/sequence.ts'
import { answerTokens } from '../../src/engine/sessions/turns.ts'
import { IS_SLOW } from '../helpers/slow.ts'
import { requestOf, shownTokens, textOf, tokenBytes, V } from './kit.ts'

/** Draws tokens one after another until the answer ends. */
function answerOf(drawn: readonly number[], strings: readonly string[], stopTokens: readonly number[]) {
  const stop = { strings, tokens: stopTokens, ignoreEos: true }
  const request = requestOf({ maxTokens: drawn.length, stop })
  const sequence = new LiveRequest(request, tokenBytes).sequences[0]!
  let text = ''
  for (const token of drawn) {
    sequence.accept(token, null)
    text += sequence.text.take()?.text ?? ''
    if (sequence.finish !== null) break
  }
  return { sequence, text, ...answerTokens(sequence, tokenBytes) }
}

test.each([
  ['length', [14, 15], [], [], 2, ''],
  ['a stop token', [14, 15, 16], [], [16], 2, ''],
  ['a stop string of whole tokens', [14, 15, 16], ['bc'], [], 1, ''],
  ['a stop string that begins inside a token', [14, 18, 16], ['bc'], [], 1, 'a'],
  ['a stop string inside one token', [14, 18], ['b'], [], 1, 'a'],
  ['a stop string at the very start', [15], ['b'], [], 0, ''],
])('%s', (_, drawn, strings, stopTokens, count, rest) => {
  const answer = answerOf(drawn, strings, stopTokens)
  expect([answer.count, answer.rest]).toEqual([count, rest])
})

test('generated answers: whole tokens, then the rest of the visible text', () => {
  const seen = { rest: 0, cut: 0, kept: 0 }
  fc.assert(
    fc.property(
      fc.array(fc.nat(V - 1), { minLength: 1, maxLength: 12 }),
      fc.array(fc.constantFrom('ab', 'b', 'é', '世', '世界', '\uFFFD', '🙂a', 'ca'), { maxLength: 3 }),
      fc.array(fc.nat(V - 1), { maxLength: 2 }),
      (drawn, strings, stopTokens) => {
        const { sequence, text, count, rest } = answerOf(drawn, strings, stopTokens)
        const matched = sequence.finish!.matched
        const kept = sequence.drawn.slice(0, count)
        if (typeof matched === 'string') {
          expect(textOf(kept, true) + rest).toBe(text)
          // No token that is completely visible is left out, except those with a partial character at the end.
          const shown = shownTokens(sequence.drawn, text.length)
          expect(count).toBeLessThanOrEqual(shown.length)
          if (rest === '') seen.cut++
          else seen.rest++
        } else {
          expect(rest).toBe('')
          expect(textOf(kept, true)).toBe(text)
          seen.kept++
        }
      },
    ),
    { numRuns: IS_SLOW ? 20_000 : 4000, seed: 9 },
  )
  for (const number of Object.values(seen)) expect(number).toBeGreaterThan(60)
})
