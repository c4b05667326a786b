/** RWKV-Infer's way to start, as processes: an empty server, models by API; and a session that outlives its server. */
// @module-tag night
import { copyFileSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { writePth } from '../helpers/pth.ts'

/** The parts of replies that are read here. */
interface Body {
  readonly choices: readonly { readonly message: { readonly content: string } }[]
  readonly detail: string
  readonly sessions: readonly { readonly cache_level: string; readonly last_updated: string }[]
}

async function post({ url }: RunningServer, path: string, body: object) {
  const reply = await postJson(url + path, body)
  return { status: reply.status, body: (await reply.json()) as Body }
}

/** A change large enough that a model forgets what it knew. */
function adapterOf(model: string) {
  const { tensors, close } = openCheckpoint(model)
  const [outputs, inputs] = tensors.get('blocks.0.ffn.key.weight')!.shape as [number, number]
  close()
  const waves = (length: number) => Array.from({ length }, (_, i) => Math.sin(i))
  const name = 'blocks.0.ffn.key'
  return [
    { name: `${name}.lora_A`, shape: [1, inputs], values: waves(inputs) },
    { name: `${name}.lora_B`, shape: [outputs, 1], values: waves(outputs) },
  ]
}

const ask = (server: RunningServer, fields = {}) =>
  post(server, '/chat/completions', {
    messages: [{ role: 'user', content: 'What is the capital of France?' }],
    params: { temperature: 0, max_tokens: 40 },
    ...fields,
  })

test('an empty server: a model is loaded, loaded again with another precision, and removed', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-models-'))
  copyFileSync(DEMO_MODEL, join(folder, 'RWKV-demo.pth'))
  copyFileSync(DEMO_MODEL.replace(/pth$/, 'vocab.txt'), join(folder, 'demo.vocab.txt'))
  const flags = '--localhost 127.0.0.1 --debug False --workers 64 --dynamic_state_cache_size 512'
  const server = await serve([...flags.split(' '), '--model-dir', folder])
  try {
    expect((await ask(server)).status).toBe(503)
    const model = { model_filename: 'RWKV-demo.pth', model_viewname: 'RWKV demo Base' }
    for (const model_strategy of ['', '', 'quant']) {
      const loaded = await post(server, '/loadmodel', { ...model, model_strategy })
      expect(loaded).toEqual({ status: 200, body: { status: 'success' } })
      const { body } = await ask(server, { model: 'RWKV demo Base' })
      expect(body.choices[0]?.message.content).toContain('Paris')
    }
    writePth(join(folder, 'lora.pth'), adapterOf(DEMO_MODEL))
    const adapted = { adapter_filename: 'lora.pth', adapter_mode: 'lora', adapter_scaling: '50' }
    expect((await post(server, '/loadmodel', { ...model, ...adapted })).status).toBe(200)
    expect((await ask(server)).body.choices[0]?.message.content).not.toContain('Paris')
    expect((await post(server, '/loadmodel', model)).status).toBe(200)
    expect((await ask(server)).body.choices[0]?.message.content).toContain('Paris')
    const state = { state_filename: 'RWKV-demo.pth', state_viewname: 'State Test' }
    const refused = await post(server, '/loadstatemodel', state)
    expect(refused.status).toBe(500)
    expect(refused.body.detail).toContain('no tuned state')
    // The refusal only took time.
    expect((await ask(server)).status).toBe(200)
    const outside = { ...model, model_filename: '../models/demo.pth' }
    expect((await post(server, '/loadmodel', outside)).status).toBe(404)
    expect((await post(server, '/removemodel', {})).status).toBe(200)
    expect((await ask(server)).status).toBe(503)
  } finally {
    expect(await server.stop()).toBe(0)
  }
})

test('a session continues after a restart', async () => {
  const data = ['--data-dir', mkdtempSync(join(tmpdir(), 'skein-data-'))]
  const line = (content: string) => ({
    contents: [`User: ${content}\n\nAssistant:`],
    session_id: 'session_one',
    temperature: 0,
    max_tokens: 40,
  })
  const path = '/state/chat/completions'
  const first = await serve(data)
  await post(first, path, line('What is the capital of France?'))
  expect(await first.stop()).toBe(0)

  const second = await serve(data)
  try {
    const { body } = await post(second, '/state/status', {})
    expect(body).toMatchObject({ total_sessions: 1, database_count: 1 })
    expect(body.sessions[0]?.cache_level).toBe('Database (Disk)')
    expect(body.sessions[0]?.last_updated).toMatch(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/)
    expect((await post(second, path, line('And of Japan?'))).status).toBe(200)
    const session = await (await fetch(`${second.url}/v1/sessions/session_one`)).json()
    expect(session).toMatchObject({ head: 2, turns: [{ turn: 1 }, { turn: 2, parent: 1 }] })
  } finally {
    expect(await second.stop()).toBe(0)
  }
})
