/** The turn that a reply says it continues, and rows with the same seed. */
import { expect, test } from 'vitest'
import type { Script } from '../helpers/fake-engine.ts'
import { CHAT, COMPLETIONS, eventsOf, HELLO, postTo, serve } from './kit.ts'

const inSession: Script = function* ({ id, session }) {
  const position = { id: session!.id, turn: 4, version: 9 }
  yield { type: 'prompt', id, logprobs: null, session: position }
  const made = { id: session!.id, turn: 7, version: 10, continued: 4 }
  const end = { reason: 'stop', matched: null, completionTokens: 1, session: made } as const
  yield { type: 'finish', id, index: 0, ...end }
}

const BODIES = [
  [CHAT, { ...HELLO, session_id: 's' }],
  [COMPLETIONS, { prompt: 'x', session_id: 's' }],
  ['/state/chat/completions', { contents: ['x'], session_id: 's' }],
] as const

test.each(BODIES)('the reply of %s says in a header which turn it continues', async (path, body) => {
  const { app, engine } = serve(inSession)
  for (const stream of [false, true]) {
    const reply = await postTo(app, path, { ...body, stream })
    expect(reply.statusCode).toBe(200)
    expect(reply.headers['x-session-continued']).toBe('4')
    // By this, a resumed call knows its own turn.
    expect(engine.requests.at(-1)!.session!.origin === undefined).toBe(!path.startsWith('/state'))
    if (path.startsWith('/state')) continue
    const last = stream ? eventsOf(reply.body).at(-2) : reply.json()
    expect(last).toMatchObject({ session: { turn: 7, continued: 4 } })
  }
})

test('without a session there is no such header', async () => {
  const { app } = serve()
  expect((await postTo(app, CHAT, HELLO)).headers['x-session-continued']).toBeUndefined()
})

test('rows of a batch have seeds of their own, unless they should be equal', async () => {
  const { app, engine } = serve()
  const seeds = async (path: string, body: object) => {
    engine.requests.length = 0
    expect((await postTo(app, path, body)).statusCode).toBe(200)
    return engine.requests.map(({ sampling }) => sampling.seed)
  }
  const contents = Array.from({ length: 32 }, () => 'x')
  for (const path of ['/v2/chat/completions', '/big_batch/completions', '/v3/chat/completions']) {
    const own = await seeds(path, { contents, seed: 7 })
    expect([own.length, new Set(own).size, own[0]]).toEqual([32, 32, 7n])
    const same = await seeds(path, { contents, seed: 7, same_seed: true })
    expect(new Set(same)).toEqual(new Set([7n]))
  }
  // As in the OpenAI API: the same request gives the same answer.
  const prompts = await seeds(COMPLETIONS, { prompt: contents, seed: 7 })
  expect(new Set(prompts)).toEqual(new Set([7n]))
})
