/** Rows 6.2: RWKV-Infer, from a server without a model to chats that start with a tuned state. */
import { copyFileSync, mkdirSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { DEMO, type RunningServer, serve } from '../helpers/cli.ts'
import { writeRandomRwkv6 } from '../helpers/pth.ts'
import { writeTunedState } from '../helpers/tuned-state.ts'
import { type Client, clientOf } from './kit.ts'

const V6 = 'models/RWKV-x060-World-1B6-v2.1-20240328-ctx4096.pth'
const BASE = 'RWKV x060 1B6 Base'
const DEMO_NAME = 'Demo'

interface Chat {
  readonly model: string
  readonly choices: readonly { readonly message: { readonly content: string } }[]
}

describe('6.2 RWKV-Infer', () => {
  let server: RunningServer
  let client: Client
  beforeAll(async () => {
    const folder = mkdtempSync(join(tmpdir(), 'skein-infer-'))
    mkdirSync(join(folder, 'models'))
    writeRandomRwkv6(join(folder, V6), { vocab: 2688 })
    copyFileSync(DEMO, join(folder, 'demo.pth'))
    for (const name of ['demo.vocab.txt', `${V6.replace(/pth$/, 'vocab.txt')}`])
      copyFileSync(DEMO.replace(/pth$/, 'vocab.txt'), join(folder, name))
    writeTunedState(join(folder, 'state.pth'), DEMO)
    writeTunedState(join(folder, 'wrong.pth'), DEMO, 1)
    const flags = '--localhost 127.0.0.1 --debug False --workers 64 --dynamic_state_cache_size 512 --model-dir'
    server = await serve([...flags.split(' '), folder])
    client = clientOf(server)
  })
  afterAll(async () => {
    expect(await server.stop()).toBe(0)
  })

  const load = (fields: object) => client.ask('/loadmodel', { model_strategy: '', ...fields })
  const chat = async (fields: object) => {
    const messages = [{ role: 'user', content: 'What is the capital of France?' }]
    const params = { temperature: 0, top_p: 0, max_tokens: 24 }
    const reply = await client.ask<Chat>('/v1/chat/completions', { messages, params, ...fields })
    return reply.choices[0]!.message.content
  }
  const names = async () => ((await (await client.get('/models')).json()) as { id: string }[]).map(({ id }) => id)

  test('6.2/1 starts without a model, and accepts "--debug False"', async () => {
    expect(await names()).toEqual([])
    const early = await client.post('/chat/completions', { messages: [], model: BASE })
    expect(early.status).not.toBe(200)
  })

  test('6.2/2 /loadmodel of RWKV-6, and again as "quant"', async () => {
    const model = { model_filename: V6, model_viewname: BASE }
    expect(await load(model)).toEqual({ status: 'success' })
    expect(await names()).toEqual([BASE])
    expect(typeof (await chat({ model: BASE }))).toBe('string')
    expect(await load({ ...model, model_strategy: 'quant' })).toEqual({ status: 'success' })
    expect(typeof (await chat({ model: BASE }))).toBe('string')
  })

  test('6.2/3 the same call twice is one model', async () => {
    const model = { model_filename: 'demo.pth', model_viewname: DEMO_NAME }
    for (let i = 0; i < 2; i++) expect(await load(model)).toEqual({ status: 'success' })
    expect(await names()).toEqual([BASE, DEMO_NAME])
    expect(await chat({ model: DEMO_NAME })).toContain('Paris')
  })

  // As the document sends it: for the last loaded model.
  const state = { state_viewname: 'State Test' }

  test('6.2/4 /loadstatemodel; a file of another size is 500 with the reason', async () => {
    const given = { ...state, state_filename: 'state.pth' }
    expect(await client.ask('/loadstatemodel', given)).toEqual({ status: 'success' })
    const refused = await client.post('/loadstatemodel', { ...state, state_filename: 'wrong.pth' })
    expect(refused.status).toBe(500)
    const { detail } = (await refused.json()) as { detail: string }
    expect(detail).toContain('layers')
    expect(detail).not.toContain(tmpdir())
  })

  test('6.2/6 /models: model, space, state', async () => {
    const reply = await (await client.get('/models')).json()
    expect(reply).toContainEqual({ object: 'models', id: DEMO_NAME })
    expect(reply).toContainEqual({ object: 'models', id: `${DEMO_NAME} State Test` })
  })

  test('6.2/7 the second id answers from the state, the base id does not', async () => {
    const messages = [{ role: 'user', content: 'Tell me a story.' }]
    const plain = await chat({ model: DEMO_NAME, messages })
    expect(await chat({ model: `${DEMO_NAME} State Test`, messages })).not.toBe(plain)
    expect(await chat({ model: DEMO_NAME, messages })).toBe(plain)
  })

  test('6.2/8 a continued chat computes only what is new', async () => {
    const metric = async () => {
      const text = await (await client.get('/metrics')).text()
      const values = text.matchAll(/^skein_\w*cached\w*tokens\w*(?:\{[^}]*\})? (\d+)$/gm)
      return [...values].reduce((sum, [, value]) => sum + Number(value), 0)
    }
    const question = {
      role: 'user',
      content: `Here is a list to remember: ${'stone, river, lamp, '.repeat(12)}and that is all of it.`,
    }
    const answer = await chat({ model: DEMO_NAME, messages: [question] })
    const before = await metric()
    await chat({
      model: DEMO_NAME,
      messages: [
        question,
        { role: 'assistant', content: answer },
        { role: 'user', content: 'What is the capital of Japan?' },
      ],
    })
    expect((await metric()) - before).toBeGreaterThanOrEqual(32)
  })

  test('a mixture of states: named, weighted, weighted differently for one request', async () => {
    const mixture = { state_viewname: 'Two Voices', model_viewname: DEMO_NAME }
    const files = { state_filenames: ['state.pth'], contain_originalstate: 'True' }
    const weights = { state_gatingweight: [0, 1], default_temperature: 0 }
    const loaded = await client.ask('/mrss_loadstatemodel', { ...mixture, ...files, ...weights })
    expect(loaded).toEqual({ status: 'success' })
    const id = `${DEMO_NAME} Two Voices`
    expect(await names()).toContain(id)
    // All weight on the model's own state gives the model itself, all on the other gives that state.
    const messages = [{ role: 'user', content: 'Tell me a story.' }]
    const plain = await chat({ model: DEMO_NAME, messages })
    const other = await chat({ model: `${DEMO_NAME} State Test`, messages })
    expect(await chat({ model: id, messages })).toBe(plain)
    expect(await chat({ model: id, messages, mrss_gatingweight: [1, 0] })).toBe(other)
    const swap = { ...mixture, state_gatingweight: [2, 0] }
    expect(await client.ask('/mrss_set_gatingweight', swap)).toEqual({ status: 'success' })
    expect(await chat({ model: id, messages })).toBe(other)
    const wrong = await client.post('/mrss_set_gatingweight', { ...swap, state_gatingweight: [1] })
    expect(wrong.status).toBe(400)
    const nobody = await client.post('/chat/completions', {
      model: DEMO_NAME,
      messages: [{ role: 'user', content: 'Hello' }],
      mrss_gatingweight: [1, 0],
    })
    expect(nobody.status).toBe(400)
  })

  test('6.2/5 /removestatemodel: all states are gone, the model is not', async () => {
    expect(await client.ask('/removestatemodel', { dummy: 'dummy' })).toEqual({ status: 'success' })
    expect(await names()).toEqual([BASE, DEMO_NAME])
    expect(await chat({ model: DEMO_NAME })).toContain('Paris')
  })
})
