/** Guesses from earlier text: which ones, how many, and how an engine uses them. */
import { expect, test } from 'vitest'
import { allGuesses, usageOf } from '../../src/api/openai/usage.ts'
import { TextLookup } from '../../src/engine/speculation/lookup.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { loadEngine } from '../../src/host/load.ts'
import { drain, requestOf, SAMPLING } from './kit.ts'

test('the guess is what followed the same tokens before', () => {
  const lookup = new TextLookup(Int32Array.of(1, 2, 3, 4, 5, 6, 7, 8, 9))
  expect(lookup.propose(4)).toEqual([])
  for (const token of [3, 4]) lookup.add(token)
  expect(lookup.propose(4)).toEqual([])
  lookup.add(5)
  expect(lookup.propose(4)).toEqual([6, 7, 8, 9])
  lookup.add(6)
  expect(lookup.propose(2)).toEqual([7, 8])
  lookup.add(1)
  expect(lookup.propose(2)).toEqual([])
})

test('of several places the one with the longest common context, then the latest', () => {
  const text = [9, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3, 70, 0, 0]
  const lookup = new TextLookup(Int32Array.from([...text, 8, 1, 2, 3]))
  expect(lookup.propose(1)).toEqual([60])
  const other = new TextLookup(Int32Array.from([...text, 5, 1, 2, 3]))
  expect(other.propose(1)).toEqual([70])
})

test('repetition is guessed beyond the end of the text', () => {
  const lookup = new TextLookup(Int32Array.of(5, 1, 2, 1, 2, 1, 2))
  expect(lookup.propose(5)).toEqual([1, 2, 1, 2, 1])
})

test('the guesses for long texts equal those of a linear search', () => {
  let seed = 7
  const random = (below: number) => {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0
    return (seed >>> 8) % below
  }
  for (const [length, vocabulary] of [
    [2500, 5],
    [2500, 40],
    [6000, 200],
  ] as const) {
    const text = Array.from({ length }, () => random(vocabulary) + 60_000)
    const lookup = new TextLookup(Int32Array.from(text.slice(0, 700)))
    for (let end = 700; end < length; end++) {
      const last = (at: number) => text.slice(Math.max(0, at - 32), at).reverse()
      const inCommon = (at: number) => {
        const [a, b] = [last(at), last(end)]
        const differs = a.findIndex((token, i) => token !== b[i])
        return differs === -1 ? a.length : differs
      }
      if (end % 50 === 0) {
        let [best, most] = [0, 2]
        for (let at = end - 1, seen = 0; at > 2 && seen < 8; at--) {
          const length = inCommon(at)
          if (length >= 3) seen++
          if (length > most) [best, most] = [at, length]
        }
        expect(lookup.propose(1)).toEqual(best === 0 ? [] : [text[best]])
        expect(lookup.isPromising).toBe(best > 0)
      }
      lookup.add(text[end]!)
    }
  }
})

test('the demo model gives the same answers in fewer steps with guesses from its text, and reports their success', async () => {
  const text = 'User: Hi\n\nAssistant: Hello. How are you?\n\nUser: Hi\n\nAssistant:'.repeat(4)
  const outcomes = await Promise.all(
    (['off', 'lookup'] as const).map(async (speculate) => {
      const choice = { model: DEMO_MODEL, device: 'cpu', slots: 2, threads: 1, speculate } as const
      const { engine, tokenizer } = await loadEngine(choice)
      const prompt = Int32Array.from(tokenizer.encode(text))
      const sampling = { ...SAMPLING, temperature: 0 }
      engine.submit(requestOf({ id: 'a', prompt, maxTokens: 60, sampling, logprobs: 2 }))
      const collected = drain(engine)
      const events = collected.of('a')
      const logprobs = events.flatMap((event) => (event.type === 'text' ? event.logprobs : []))
      const finish = events.find((event) => event.type === 'finish')!
      const { stats } = engine
      await engine.close()
      return { answer: collected.answer('a'), logprobs, finish, stats }
    }),
  )
  const [off, lookup] = outcomes
  expect(lookup!.answer).toEqual(off!.answer)
  expect(lookup!.logprobs).toEqual(off!.logprobs)
  const { acceptedTokens, guessedTokens, steps } = lookup!.stats
  expect(acceptedTokens).toBeGreaterThan(8)
  expect(steps).toBeLessThan(off!.stats.steps - 5)
  const rejected = guessedTokens - acceptedTokens
  expect(lookup!.finish).toEqual({ ...off!.finish, guesses: { lookup: { accepted: acceptedTokens, rejected } } })
  const { lookupGuessed, lookupAccepted } = lookup!.stats
  expect([lookupGuessed, lookupAccepted]).toEqual([guessedTokens, acceptedTokens])
  const draft = { accepted: 2, rejected: 1 }
  const all = allGuesses([{ guesses: { draft } }, { guesses: {} }, { guesses: { draft } }], true)
  expect(usageOf(9, 60, null, 0, all)).toMatchObject({
    completion_tokens_details: {
      accepted_prediction_tokens: 4,
      rejected_prediction_tokens: 2,
      guesses: { draft: { accepted: 4, rejected: 2 }, prediction: { accepted: 0, rejected: 0 } },
    },
  })
  expect(usageOf(9, 60, null)).not.toHaveProperty('completion_tokens_details')
})
