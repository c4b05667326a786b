/** Start states by model name, as clients ask for them. */

import { expect, test } from 'vitest'
import { buildApp } from '../../src/gateway/app.ts'
import { createRegistry } from '../../src/gateway/routing/registry.ts'
import { answer, byteCodec, FAKE_INFO, FakeEngineClient, localSource } from '../helpers/fake-engine.ts'
import { CHAT, COMPLETIONS, HELLO, postTo } from './kit.ts'

function serve(ids: readonly string[] = ['goose'], startStates = ['poet', 'tale']) {
  const info = { ...FAKE_INFO, startStates }
  const engines = ids.map(() => new FakeEngineClient((request) => answer(request, 'Hi'), info))
  const models = createRegistry(ids.map((id, i) => ({ id, tokenizer: byteCodec, source: localSource(engines[i]!) })))
  const app = buildApp({ models, keys: [], host: '127.0.0.1', version: '1' })
  return { app, engines }
}

test.each([
  ['goose@poet', 'poet'],
  ['goose tale', 'tale'],
  ['@poet', 'poet'],
  ['rwkv@tale', 'tale'],
])('%s', async (model, startState) => {
  const { app, engines } = serve()
  const chat = await postTo(app, CHAT, { ...HELLO, model })
  const completion = await postTo(app, COMPLETIONS, { prompt: ['a', 'b'], model })
  expect([chat.statusCode, completion.statusCode]).toEqual([200, 200])
  expect(chat.json()).toMatchObject({ model: `goose@${startState}` })
  expect(engines[0]!.requests.map((request) => request.startState)).toEqual(Array.from({ length: 3 }, () => startState))
})

test('the model name alone means the default start', async () => {
  const { app, engines } = serve()
  const reply = await postTo(app, CHAT, { ...HELLO, model: 'goose' })
  expect(reply.json()).toMatchObject({ model: 'goose' })
  expect(engines[0]!.requests[0]!.startState).toBeUndefined()
})

test('a model whose own name has an @ or a space is found', async () => {
  const { app, engines } = serve(['goose', 'goose@poet', 'grey goose'])
  for (const model of ['goose@poet', 'grey goose', 'grey goose@tale', 'grey goose tale'])
    expect((await postTo(app, CHAT, { ...HELLO, model })).statusCode).toBe(200)
  expect(engines.map(({ requests }) => requests.map((request) => request.startState))).toEqual([
    [],
    [undefined],
    [undefined, 'tale', 'tale'],
  ])
})

test.each([
  ['goose@pote', 'there is no start state of that name'],
  ['goose ', 'no model of that name'],
  ['duck@poet', 'no model of that name'],
])('%s is not found', async (model, reason) => {
  const { app, engines } = serve()
  const reply = await postTo(app, CHAT, { ...HELLO, model })
  expect(reply.statusCode).toBe(404)
  expect(reply.json()).toMatchObject({ error: { param: 'model' } })
  expect(reply.body).toContain(reason)
  expect(engines[0]!.requests).toEqual([])
})

test('GET /v1/models lists every name that can be requested', async () => {
  const { app } = serve(['goose', 'duck'])
  const list = await app.inject('/v1/models')
  // The route's own JSON.
  const { data } = list.json() as { data: { id: string }[] }
  expect(data.map(({ id }) => id)).toEqual([
    ...['goose', 'goose@poet', 'goose@tale'],
    ...['duck', 'duck@poet', 'duck@tale'],
  ])
  const one = await app.inject('/v1/models/goose%40poet')
  expect(one.json()).toMatchObject({ id: 'goose@poet', architecture: 'rwkv7' })
  expect((await app.inject('/v1/models/goose%40pote')).statusCode).toBe(404)
})

test('prompts with tools begin with the state named tools, unless another is requested', async () => {
  const parameters = { type: 'object', properties: {} }
  const tools = [{ type: 'function', function: { name: 'look', parameters } }]
  const asked = [
    { ...HELLO },
    { ...HELLO, tools },
    { ...HELLO, tools, tool_choice: 'none' },
    { ...HELLO, tools, model: 'goose@poet' },
  ]
  const startsOf = async (states: string[]) => {
    const { app, engines } = serve(['goose'], states)
    for (const body of asked) expect((await postTo(app, CHAT, body)).statusCode).toBe(200)
    return engines[0]!.requests.map(({ startState }) => startState)
  }
  expect(await startsOf(['poet', 'tools'])).toEqual([undefined, 'tools', undefined, 'poet'])
  expect(await startsOf(['poet'])).toEqual([undefined, undefined, undefined, 'poet'])
})
