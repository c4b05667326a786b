/** Rows 6.1: conRWKV, its benchmark, and the routes of RWKV-Runner that the benchmark is compared with. */
import { copyFileSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { DEMO, type RunningServer, serve, skein } from '../helpers/cli.ts'
import { type Client, clientOf, type Json, payloadsOf } from './kit.ts'

/** SKEIN_ACCEPTANCE=full: 1200 prompts at the documents' rates, ten minutes and five; otherwise fewer and faster. */
const LOADS =
  process.env.SKEIN_ACCEPTANCE === 'full'
    ? ({ prompts: 1200, rates: [2, 4] } as const)
    : ({ prompts: 60, rates: [20, 40] } as const)
const ALL = { timeout: 900_000 }
const ALL_AT_NIGHT = { ...ALL, tags: 'night' }

const BODY = {
  model: 'rwkv',
  prompt: 'The capital of France is',
  temperature: 0.0,
  best_of: 1,
  max_tokens: 24,
  ignore_eos: true,
}

interface Completion {
  readonly choices: readonly { readonly text: string; readonly finish_reason: string | null }[]
  readonly usage: { readonly completion_tokens: number }
}

describe('6.1 conRWKV', () => {
  let server: RunningServer
  let client: Client
  const folder = mkdtempSync(join(tmpdir(), 'skein-runner-'))
  beforeAll(async () => {
    copyFileSync(DEMO, join(folder, 'rwkv.pth'))
    copyFileSync(DEMO.replace(/pth$/, 'vocab.txt'), join(folder, 'rwkv.vocab.txt'))
    server = await serve(['--model', join(folder, 'rwkv.pth')])
    client = clientOf(server)
  })
  afterAll(async () => {
    expect(await server.stop()).toBe(0)
  })

  async function allSucceed(rate: number) {
    const sizes = ['--num-prompts', String(LOADS.prompts), '--input-len', '64', '--output-len', '32']
    const flags = ['--url', server.url, '--request-rate', String(rate), '--json', '-']
    const bench = await skein(['bench', 'serve', ...flags, ...sizes])
    expect(bench.code, bench.stderr).toBe(0)
    const { summary } = JSON.parse(bench.stdout) as { summary: Json }
    expect(summary).toMatchObject({ numSucceeded: LOADS.prompts, numFailed: 0 })
  }

  test('6.1/1 `conRWKV --model FILE` serves the OpenAI routes', async () => {
    const models = (await (await client.get('/v1/models')).json()) as { data: { id: string }[] }
    expect(models.data.map(({ id }) => id)).toEqual(['rwkv'])
    const plain = await client.ask<Completion>('/v1/completions', BODY)
    expect(plain.usage.completion_tokens).toBe(24)
    expect(plain.choices[0]?.finish_reason).toBe('length')
    const streamed = await client.post('/v1/completions', { ...BODY, stream: true })
    const payloads = payloadsOf(await streamed.text())
    expect(payloads.at(-1)).toBe('[DONE]')
    const texts = (payloads.slice(0, -1) as Completion[]).map(({ choices }) => choices[0]!.text)
    expect(texts.join('')).toBe(plain.choices[0]?.text)
  })

  test('6.1/2 benchmark at the lower rate: all succeed', ALL, () => allSucceed(LOADS.rates[0]))
  test('6.1/3 benchmark at the higher rate: all succeed', ALL_AT_NIGHT, () => allSucceed(LOADS.rates[1]))

  test('6.1/4 /switch-model with deploy as a string: "success", and 403 from then on', async () => {
    const body = { model: join(folder, 'rwkv.pth'), strategy: 'cpu fp32', deploy: 'true' }
    const switched = await client.post('/switch-model', body)
    expect(switched.status, await switched.clone().text()).toBe(200)
    expect(await switched.json()).toBe('success')
    expect((await client.post('/switch-model', body)).status).toBe(403)
  })

  test('6.1/5 the first benchmark on a switched model', ALL_AT_NIGHT, () => allSucceed(LOADS.rates[0]))
  test('6.1/6 the second benchmark on a switched model', ALL, () => allSucceed(LOADS.rates[1]))
})
