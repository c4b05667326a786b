import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { CountedResult } from '../../src/bench/serve/bench.ts'
import type { Summary } from '../../src/bench/serve/statistics.ts'
import { type RunningServer, serve, skein } from '../helpers/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-bench-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** The output of `--json`. */
interface Written {
  readonly setting: { readonly url: string }
  readonly summary: Summary
  readonly requests: readonly CountedResult[]
}

/** Answers of the demo model without an end, so that lengths are as requested. */
const ENDLESS = ['--ignore-eos', '--extra-body', '{"logit_bias":{"0":-100}}']

describe('a load on the demo model', () => {
  let server: RunningServer
  beforeAll(async () => {
    server = await serve(['--slots', '64'])
  })
  afterAll(async () => {
    await server.stop()
  })

  const bench = async (...args: string[]) => {
    const out = join(folder, 'out.json')
    const { code, stdout, stderr } = await skein([...['bench', 'serve', '--url', server.url, '--json', out, ...args]])
    // A busy machine may make it warn about its own clock.
    expect(stderr).not.toContain('failed')
    expect(code).toBe(0)
    return { stdout, ...(JSON.parse(readFileSync(out, 'utf8')) as Written) }
  }

  test('60 requests at 20 per second all succeed, and the figures are consistent', async () => {
    const page = join(folder, 'page.html')
    const load = ['--num-prompts', '60', '--request-rate', '20', '--range-ratio', '0.5']
    const { stdout, summary, requests } = await bench(
      ...[...load, '--input-len', '24', '--output-len', '16', '--html', page, ...ENDLESS],
    )
    expect(stdout).toMatch(/^60 of 60 requests succeeded in /)
    expect(summary).toMatchObject({ numRequests: 60, numSucceeded: 60, failures: [] })
    expect(requests).toHaveLength(60)
    let [input, output] = [0, 0]
    for (const { failure, inputTokens, answers, e2eMs } of requests) {
      expect(failure).toBeNull()
      const [{ outputTokens, firstMs, endMs, gapsMs }] = answers as [(typeof answers)[0]]
      expect(outputTokens).toBeGreaterThanOrEqual(8)
      expect(outputTokens).toBeLessThanOrEqual(16)
      expect(firstMs).toBeGreaterThan(0)
      expect(firstMs).toBeLessThanOrEqual(e2eMs)
      expect(endMs).toBeLessThanOrEqual(e2eMs)
      const gaps = gapsMs.reduce((sum, gap) => sum + gap, 0)
      expect(firstMs! + gaps).toBeLessThanOrEqual(e2eMs + 0.1)
      input += inputTokens!
      output += outputTokens!
    }
    expect(summary.inputTokens.total).toBe(input)
    expect(summary.outputTokens.total).toBe(output)
    expect(summary.totalTokens.total).toBe(input + output)
    // Prompts of 12 to 24 tokens, as close as whole words allow.
    expect(input / 60).toBeGreaterThan(14)
    expect(input / 60).toBeLessThan(22)
    const seconds = summary.durationMs / 1000
    expect(summary.requestsPerSecond).toBeCloseTo(60 / seconds, 1)
    expect(summary.outputTokens.perSecond).toBeCloseTo(output / seconds, 0)
    // Sixty Poisson arrivals at 20 a second take 3 s, give or take 0.4 s; seeded, so always the same.
    expect(Math.max(...requests.map(({ sentMs }) => sentMs))).toBeGreaterThan(2000)
    expect(readFileSync(page, 'utf8').match(/<svg /g)).toHaveLength(4)
  })

  test('64 streams at once', { tags: 'night' }, async () => {
    const { summary, requests } = await bench(
      ...['--num-prompts', '128', '--concurrency', '64'],
      ...['--input-len', '8', '--output-len', '24', '--range-ratio', '1', ...ENDLESS],
    )
    expect(summary).toMatchObject({ numSucceeded: 128, peakConcurrency: 64 })
    expect(summary.outputTokens.total).toBe(128 * 24)
    expect(requests.every(({ tokensFrom }) => tokensFrom === 'usage')).toBe(true)
  })

  test('a batch of rwkv_lightning, prompts from a file', { tags: 'night' }, async () => {
    const file = join(folder, 'prompts.jsonl')
    writeFileSync(file, '"Once upon a time"\n"What is the capital of France?"\n')
    const { summary, requests } = await bench(
      ...['--endpoint', 'lightning', '--dataset', file, '--output-len', '12', ...ENDLESS],
      ...['--num-prompts', '24', '--batch', '8'],
    )
    expect(summary).toMatchObject({ numRequests: 3, numSucceeded: 3 })
    expect(requests.map(({ answers }) => answers.length)).toEqual([8, 8, 8])
    // A token that is not a whole character is sent with the next event.
    expect(summary.outputTokens.total).toBeGreaterThan(24 * 12 * 0.7)
    expect(summary.outputTokens.total).toBeLessThanOrEqual(24 * 12)
  })

  test('without a stream there is no time to the first token', { tags: 'night' }, async () => {
    const { stdout, summary } = await bench('--num-prompts', '2', '--output-len', '4', '--no-stream')
    expect(summary).toMatchObject({ numSucceeded: 2, ttftMs: null, itlMs: null })
    expect(stdout).toMatch(/^TTFT +- +- +- +-$/m)
  })

  test('a failed request makes the command fail', { tags: 'night' }, async () => {
    const file = join(folder, 'lengths.jsonl')
    // The first is the warm-up, the second is longer than the server allows.
    writeFileSync(file, '{"prompt":"a","max_tokens":1}\n{"prompt":"b","max_tokens":1000000}\n')
    const seeds = await Promise.all(
      ['1', '2', '3', '4'].map((seed) =>
        skein([
          ...['bench', 'serve', '--url', server.url, '--dataset', file],
          ...['--num-prompts', '2', '--seed', seed],
        ]),
      ),
    )
    expect(seeds.map(({ code }) => code)).toEqual([1, 1, 1, 1])
    const loaded = seeds.filter(({ stdout }) => stdout !== '')
    expect(loaded.length).toBeGreaterThan(0)
    for (const { stdout, stderr } of loaded) {
      expect(stdout).toMatch(/^1 of 2 requests succeeded/)
      expect(stderr).toMatch(/^1 failed: http 400 \(first: max_tokens/m)
    }
  })
})

test.each([
  [['--url', 'ftp://localhost'], '--url takes a URL'],
  [['--endpoint', 'messages'], '--endpoint takes one of completions, chat'],
  [['--batch', '4'], '--endpoint completions takes one prompt a request'],
  [['--request-rate', '0'], '--request-rate takes a number from'],
  [['--dataset', '/no/such.json'], '--dataset /no/such.json cannot be read (ENOENT)'],
  [['--dataset', 'README.md', '--input-len', '5'], '--input-len and --range-ratio apply to random'],
  [['--extra-body', '[1]'], '--extra-body takes a JSON object'],
  [['--url', 'http://127.0.0.1:1'], 'no server answers at http://127.0.0.1:1'],
])('bench serve %j is refused with a reason', async (args, message) => {
  const { code, stdout, stderr } = await skein(['bench', 'serve', ...args])
  const isFailure = /cannot be read|no server answers/.test(message)
  expect({ code, stdout }).toEqual({ code: isFailure ? 1 : 2, stdout: '' })
  expect(stderr).toContain(message)
})
