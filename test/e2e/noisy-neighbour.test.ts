/**
 * One key floods the server with long prompts, another sends a short request now and then: how much the second one is
 * affected. The same flood under the second one's key shows the effect without fairness. test/engine/preemption.test.ts
 * has the same in steps.
 * `SKEIN_SLOW=1 SKEIN_FIGURES=1 npx vitest run test/e2e/noisy-neighbour.test.ts` takes longer and prints the table of
 * docs/dev/measurements.md.
 */
// @module-tag night
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type RunningServer, serve, skein } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'

const isLong = process.env.SKEIN_FIGURES === '1'
const NUM_ASKED = isLong ? 80 : 10
const FLOOD = 64
const folder = mkdtempSync(join(tmpdir(), 'skein-noisy-'))
const keysFile = join(folder, 'keys.json')
const secrets: Record<string, string> = {}
let server: RunningServer

beforeAll(async () => {
  const limits: Record<string, string[]> = { quiet: [], loud: [], few: ['--rows', '4'], one: ['--rows', '1'] }
  for (const [name, flags] of Object.entries(limits)) {
    const { stdout } = await skein(['keys', 'add', name, '--keys', keysFile, ...flags])
    secrets[name] = stdout.trim()
  }
  server = await serve(['--no-store', '--keys', keysFile, '--prefix-cache-mb', '0'])
})

afterAll(async () => {
  await server?.stop()
  rmSync(folder, { recursive: true, force: true })
})

interface Timed {
  readonly ttft: number
  /** Times between pieces of text. */
  readonly gaps: readonly number[]
}

/** Null: refused, after the requested wait. */
async function ask(
  key: string,
  words: number,
  maxTokens: number,
  signal?: AbortSignal,
  onPiece: () => void = () => {},
): Promise<Timed | null> {
  const started = performance.now()
  const noise = Array.from({ length: words }, () => Math.random().toString(36).slice(2, 7))
  const reply = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      prompt: noise.join(' '),
      max_tokens: maxTokens,
      ignore_eos: true,
      stream: true,
      temperature: 1,
      logit_bias: { 0: -100 },
    }),
    ...(signal === undefined ? {} : { signal }),
  })
  if (reply.status === 429) {
    await reply.arrayBuffer()
    const seconds = Number(reply.headers.get('retry-after')) + Math.random()
    await delay(1000 * seconds, undefined, { signal })
    return null
  }
  expect(reply.status).toBe(200)
  const times: number[] = []
  // A 200 with an event stream has a body.
  for await (const _ of reply.body!) {
    times.push(performance.now())
    onPiece()
  }
  const gaps = times.slice(1).map((time, i) => time - times[i]!)
  return { ttft: times[0]! - started, gaps }
}

/** 64 clients that send long prompts all the time, and wait when told to. */
async function flooded<T>(key: string | null, work: () => Promise<T>): Promise<T> {
  const ending = new AbortController()
  /** One of them has its first word, so all have sent their request. */
  let begin = () => {}
  const begun = new Promise<void>((resolve) => {
    begin = resolve
  })
  const client = async () => {
    while (!ending.signal.aborted) await ask(key!, 400, 200, ending.signal, begin)
  }
  const clients = key === null ? [] : Array.from({ length: FLOOD }, () => client().catch(() => {}))
  try {
    if (key !== null) await begun
    return await work()
  } finally {
    ending.abort()
    await Promise.all(clients)
  }
}

async function askedQuietly(): Promise<readonly Timed[]> {
  const all: Promise<Timed | null>[] = []
  for (let i = 0; i < NUM_ASKED; i++) {
    all.push(ask(secrets.quiet!, 12, 24))
    await delay(150 + 200 * Math.random())
  }
  return (await Promise.all(all)).filter((one) => one !== null)
}

function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!
}

const CASES = {
  alone: null,
  'with the flood under its own key': 'quiet',
  'with the flood under another key': 'loud',
  'the same, that key with --rows 4': 'few',
  'the same, that key with --rows 1': 'one',
} as const

/** The asserted figures; the others are for the table. */
const COMPARED = [
  'with the flood under its own key',
  'with the flood under another key',
  'the same, that key with --rows 1',
]

test('a flood of another key costs a quiet key little', { timeout: 300_000 }, async () => {
  const ttft: Record<string, number> = {}
  for (const [name, flood] of Object.entries(CASES)) {
    if (!isLong && !COMPARED.includes(name)) continue
    const timed = await flooded(flood === null ? null : secrets[flood]!, askedQuietly)
    const firsts = timed.map((one) => one.ttft)
    const gaps = timed.flatMap((one) => one.gaps)
    ttft[name] = percentile(firsts, 0.5)
    const figures = [percentile(firsts, 0.5), percentile(firsts, 0.99), percentile(gaps, 0.5), percentile(gaps, 0.99)]
    if (isLong) console.log(`| ${name} | ${figures.map((ms) => ms.toFixed(1)).join(' | ')} |`)
  }
  const { 'with the flood under its own key': shared, 'with the flood under another key': fair } = ttft
  // Without fairness a newcomer waits for the answers of 64 others to end.
  expect(fair).toBeLessThan(shared! / 2)
  expect(ttft['the same, that key with --rows 1']).toBeLessThan(shared! / 2)
})

test('slow grammars of another key cost a quiet key’s constrained answers little', { timeout: 120_000 }, async () => {
  const held = async (key: string, constraint: object, maxTokens: number, signal: AbortSignal) => {
    const reply = await postJson(
      `${server.url}/v1/chat/completions`,
      { messages: [{ role: 'user', content: 'Hi' }], max_tokens: maxTokens, ...constraint },
      { authorization: `Bearer ${key}` },
      signal,
    )
    await reply.arrayBuffer()
    return reply.status
  }
  const ending = new AbortController()
  const loud = [
    // Each would be compiled for longer than the 5 s that it has.
    ...Array.from({ length: 8 }, (_, i) => ({ guided_regex: `(.*a.{5${i}})|(.*b.{80})` })),
    // Quick to compile, but a mask of a long answer takes a second.
    { guided_grammar: 'root ::= e{400,1000} "x"\ne ::= e e | "a" | "b" | "ab" | "ba" | "aab"', n: 16 },
  ]
  const flood = loud.map((one) => held(secrets.loud!, one, 1500, ending.signal).catch(() => 0))
  await delay(2000)
  const times: number[] = []
  for (let i = 0; i < 20; i++) {
    const begin = performance.now()
    const within = AbortSignal.timeout(30_000)
    expect(await held(secrets.quiet!, { guided_regex: `(Paris|London)[.!]${i}` }, 16, within)).toBe(200)
    times.push(performance.now() - begin)
  }
  ending.abort()
  await Promise.all(flood)
  // Behind them it would wait for minutes.
  expect(percentile(times, 0.5)).toBeLessThan(3000)
})
