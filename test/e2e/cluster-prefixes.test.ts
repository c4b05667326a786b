/**
 * A long common prefix of clients of one node, requested at another node that has not read it: it is fetched, with the
 * same answers.
 */
// @module-tag night
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { DEMO, type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'

const SHARED = Array.from({ length: 1500 }, (_, i) => 1 + ((i * 37) % 250))

describe.skipIf(NO_POSTGRES !== null)('a common prefix', { timeout: 120_000 }, () => {
  let postgres: Postgres
  let nodes: RunningServer[]
  let solo: RunningServer

  beforeAll(async () => {
    postgres = await startPostgres()
    // Its states are too large for rows.
    const shape = { layers: 16, channels: 256, ffn: 256, vocab: 2688, dtype: 'bf16' } as const
    const model = writeRandomRwkv7(join(mkdtempSync(join(tmpdir(), 'skein-model-')), 'm.pth'), shape)
    const own = [model, '--vocab', DEMO.replace(/pth$/, 'vocab.txt'), '--device', 'cpu']
    const flags = [...own, '--threads', '1', '--slots', '4']
    const blobs = pathToFileURL(mkdtempSync(join(tmpdir(), 'skein-blobs-'))).href
    const shared = ['--cluster', postgres.newDatabase(), '--blobs', blobs]
    const node = (name: string) => serve([...flags, ...shared, '--node-name', name])
    ;[solo, ...nodes] = await Promise.all([serve(flags), node('a'), node('b')])
  }, 300_000)

  afterAll(() => {
    for (const server of [...(nodes ?? []), solo]) server?.process.kill('SIGKILL')
    postgres?.remove()
  })

  const ask = async ({ url }: RunningServer, last: number) => {
    const reply = await postJson(`${url}/v1/completions`, {
      prompt: [...SHARED, last, 7],
      max_tokens: 6,
      temperature: 0,
    })
    expect(reply.status).toBe(200)
    const { choices, usage } = (await reply.json()) as {
      choices: { text: string }[]
      usage: { prompt_tokens_details: { cached_tokens: number } }
    }
    return { text: choices[0]!.text, cached: usage.prompt_tokens_details.cached_tokens }
  }
  const metric = async ({ url }: RunningServer, name: string) => {
    const text = await (await fetch(`${url}/metrics`)).text()
    return Number(new RegExp(`^skein_${name}(?:_total)?(?:{[^}]*})? (\\S+)$`, 'm').exec(text)?.[1])
  }

  test('is read by one node and fetched by the other', async () => {
    const [a, b] = nodes as [RunningServer, RunningServer]
    // The third prompt finds it where the first two diverge; the fifth is the second to do so.
    for (let last = 1; last <= 5; last++) await ask(a, last)
    await expect.poll(() => metric(a, 'prefixes_published_total'), { timeout: 30_000 }).toBeGreaterThan(0)
    const { text, cached } = await ask(b, 100)
    expect(text).toBe((await ask(solo, 100)).text)
    // On a busy machine it arrives a moment later, and the request has read the prefix itself.
    expect([0, 1024, 1500]).toContain(cached)
    await expect.poll(() => metric(b, 'prefix_fetches_total'), { timeout: 30_000 }).toBeGreaterThan(0)
    expect((await ask(b, 101)).cached).toBeGreaterThanOrEqual(1024)
  })
})
