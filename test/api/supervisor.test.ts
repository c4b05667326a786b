/** The supervisor with real child processes, and a gateway whose worker dies. */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { pino } from 'pino'
import { afterEach, expect, test } from 'vitest'
import { buildApp } from '../../src/gateway/app.ts'
import { Supervisor, type SupervisorTiming } from '../../src/gateway/fleet/supervisor.ts'
import { createRegistry } from '../../src/gateway/routing/registry.ts'
import { Router } from '../../src/gateway/routing/router.ts'
import { byteCodec } from '../helpers/fake-engine.ts'
import { COMPLETIONS, eventsOf, postTo } from './kit.ts'

const entry = join(import.meta.dirname, '../helpers/fake-worker.mjs')
const QUICK = { firstPauseMs: 10, longestPauseMs: 40, stopMs: 200 }

const started: Supervisor[] = []
afterEach(async () => {
  await Promise.all(started.splice(0).map((supervisor) => supervisor.stop()))
})

function supervise(
  args: readonly string[] | (() => readonly string[]),
  timing: Partial<SupervisorTiming> = {},
  maxBytes?: number,
) {
  const lines: string[] = []
  const logger = pino({}, { write: (line: string) => lines.push(line) })
  const progress: number[] = []
  const printed: string[] = []
  const argsNow = () => (typeof args === 'function' ? args() : args)
  const supervisor = new Supervisor({
    worker: () => ({ entry, args: argsNow(), execArgv: [] }),
    name: 'w',
    logger,
    timing: { ...QUICK, ...timing },
    maxBytes,
    onProgress: (done, total) => progress.push(done / total),
    onLine: (line) => printed.push(line),
  })
  started.push(supervisor)
  return { supervisor, lines, progress, printed }
}

function appOver(supervisor: Supervisor) {
  const models = createRegistry([{ id: 'goose', tokenizer: byteCodec, source: supervisor }])
  return buildApp({ models, keys: [], host: '127.0.0.1', version: '1' })
}

test('loads, serves and stops', async () => {
  const { supervisor, lines, progress, printed } = supervise(['serve'])
  expect(supervisor.state).toBe('loading')
  await supervisor.start()
  expect(supervisor.state).toBe('ready')
  expect(supervisor.reason).toBeNull()
  expect(progress).toEqual([0.25])
  const reply = await postTo(appOver(supervisor), COMPLETIONS, { prompt: 'hi' })
  expect(reply.json().choices[0].text).toBe('ok')
  await expect.poll(() => printed).toContain('worker in mode serve')
  expect(lines.join('')).toContain('worker in mode serve')
  const pid = supervisor.pid!
  await supervisor.stop()
  expect(supervisor.state).toBe('stopped')
  expect(supervisor.client).toBeNull()
  expect(() => process.kill(pid, 0)).toThrow()
})

test('a worker that dies costs each of its streams one error event, and is restarted', async () => {
  const { supervisor, lines } = supervise(['serve'], { firstPauseMs: 300, longestPauseMs: 300 })
  await supervisor.start()
  const app = appOver(supervisor)
  const began = performance.now()
  const reply = await postTo(app, COMPLETIONS, { prompt: 'A', echo: true, stream: true })
  expect(performance.now() - began).toBeLessThan(2000)
  expect(reply.statusCode).toBe(200)
  const last = eventsOf(reply.body).at(-1) as { error: { code: string } }
  expect(last.error.code).toBe('model_not_loaded')

  await expect.poll(() => supervisor.state).toBe('restarting')
  const ready = await app.inject({ url: '/readyz' })
  expect(ready.statusCode).toBe(503)
  expect(ready.json().reason).toContain('started again')
  const refused = await postTo(app, COMPLETIONS, { prompt: 'hi' })
  expect(refused.statusCode).toBe(503)
  expect(refused.headers['retry-after']).toBeDefined()

  await expect.poll(() => supervisor.state, { timeout: 5000 }).toBe('ready')
  expect((await postTo(app, COMPLETIONS, { prompt: 'hi' })).statusCode).toBe(200)
  expect(lines.join('')).toContain('signal SIGABRT')
})

test('a worker that fails and does not end is not asked any more, and killed', async () => {
  const { supervisor } = supervise(['lost-gpu'])
  await supervisor.start()
  const app = appOver(supervisor)
  const begun = performance.now()
  expect((await postTo(app, COMPLETIONS, { prompt: 'A' })).statusCode).toBe(500)
  await expect.poll(() => supervisor.state, { interval: 5 }).toBe('restarting')
  expect(performance.now() - begun).toBeLessThan(900)
  expect((await app.inject({ url: '/readyz' })).statusCode).toBe(503)
  await expect.poll(() => supervisor.state, { timeout: 5000 }).toBe('ready')
  expect(supervisor.exitCode).toBe(-9)
  expect((await postTo(app, COMPLETIONS, { prompt: 'hi' })).statusCode).toBe(200)
})

test('the start options of a worker are computed anew at each start', async () => {
  const modes = ['crash', 'crash', 'serve']
  const { supervisor, printed } = supervise(() => [modes.shift()!])
  await supervisor.start()
  expect(supervisor.restarts).toBe(2)
  await expect.poll(() => printed).toContain('worker in mode serve')
})

test.each([
  ['full-disk', 'disk is full', 'room for its store'],
  ['full-gpu', 'device memory asked for', 'enough memory for the model'],
])(
  'a worker that has served before waits for room, however long there is none: %s',
  { tags: 'night' },
  async (shortage, message, wanted) => {
    const full = Array.from({ length: 5 }, () => shortage)
    const modes = ['serve', ...full, 'serve', 'serve']
    const { supervisor } = supervise(() => [modes.shift()!], { maxCrashes: 3 })
    await supervisor.start()
    await postTo(appOver(supervisor), COMPLETIONS, { prompt: 'A' })
    await expect.poll(() => supervisor.reason, { interval: 2 }).toContain(wanted)
    await expect.poll(() => modes.length, { timeout: 10_000 }).toBe(1)
    await expect.poll(() => supervisor.state).toBe('ready')
    expect(supervisor.restarts).toBe(6)
    // Waiting was no crash, so the next crash is not the last.
    await postTo(appOver(supervisor), COMPLETIONS, { prompt: 'A' })
    await expect.poll(() => modes.length, { timeout: 10_000 }).toBe(0)
    await expect.poll(() => supervisor.state).toBe('ready')

    // A worker that never served is reported to the caller.
    const { supervisor: other } = supervise([shortage], { maxCrashes: 3 })
    await expect(other.start()).rejects.toThrow(message)
  },
)

test('a worker that has served before is restarted until it can open files', {
  tags: 'night',
  timeout: 120_000,
}, async () => {
  const short = Array.from({ length: 12 }, () => 'no-descriptors')
  const modes = ['serve', ...short, 'serve']
  const { supervisor } = supervise(() => [modes.shift()!], { maxCrashes: 10, longestPauseMs: 20 })
  await supervisor.start()
  await postTo(appOver(supervisor), COMPLETIONS, { prompt: 'A' })
  await expect.poll(() => modes.length, { timeout: 100_000 }).toBe(0)
  await expect.poll(() => supervisor.state, { timeout: 10_000 }).toBe('ready')
  expect(supervisor.restarts).toBe(13)
})

test('a first crash is tolerated', async () => {
  const file = join(mkdtempSync(join(tmpdir(), 'skein-')), 'crashed')
  const { supervisor } = supervise(['crash-once', file])
  await supervisor.start()
  expect(supervisor.state).toBe('ready')
})

test('a worker that cannot start is given up, after growing pauses', async () => {
  const { supervisor, lines } = supervise(['crash'], { maxCrashes: 4 })
  await expect(supervisor.start()).rejects.toMatchObject({ code: 'model_not_loaded' })
  expect(supervisor.state).toBe('failed')
  const pauses = lines.map((line) => JSON.parse(line).pauseMs).filter((ms) => ms !== undefined)
  expect(pauses).toEqual([10, 20, 40])
  expect(lines.at(-1)).toContain('given up: 4 times in a row; the worker ended while it was loading (exit code 7)')
})

test('loading is not retried if the weights cannot be loaded', async () => {
  const { supervisor, lines } = supervise(['fatal'])
  await expect(supervisor.start()).rejects.toMatchObject({
    code: 'corrupt_weights',
    message: 'tensor emb.weight is cut short',
  })
  expect(supervisor.state).toBe('failed')
  expect(supervisor.exitCode).toBe(1)
  expect(supervisor.failure).toBe('tensor emb.weight is cut short')
  expect(supervisor.reason).toBe('the model could not be loaded or kept running (corrupt_weights)')
  expect(lines.filter((line) => line.includes('worker in mode'))).toHaveLength(1)
})

test('a worker that reports a failed load and does not end is killed', async () => {
  const { supervisor } = supervise(['fatal-deaf'], { lastWordsMs: 50 })
  await expect(supervisor.start()).rejects.toMatchObject({ code: 'corrupt_weights' })
  expect(supervisor.exitCode).toBe(-9)
})

test('a worker that accepts work but makes no step is killed and replaced', async () => {
  const { supervisor, lines } = supervise(['hang'], { stallMs: 200 })
  await supervisor.start()
  const reply = await postTo(appOver(supervisor), COMPLETIONS, { prompt: 'hi', stream: true })
  expect(reply.statusCode).toBe(503)
  expect(lines.join('')).toContain('has made no step')
  await expect.poll(() => supervisor.state).toBe('ready')
})

test('a worker that does not stop is killed', async () => {
  const { supervisor } = supervise(['deaf'], { stopMs: 50 })
  await supervisor.start()
  const pid = supervisor.pid!
  await supervisor.stop()
  expect(() => process.kill(pid, 0)).toThrow()
})

test('an idle worker that does not answer is replaced', async () => {
  const { supervisor, printed } = supervise(['sick'], { probeMs: 100 })
  await supervisor.start()
  await expect.poll(() => supervisor.restarts).toBeGreaterThan(0)
  expect(printed.join('\n')).toContain('it does not answer: NaN in the logits')
})

test('a worker that has grown too large finishes its work and is replaced', async () => {
  const { supervisor, printed } = supervise(['serve'], {}, 2 ** 20)
  await supervisor.start()
  await expect.poll(() => supervisor.restarts, { timeout: 5000 }).toBe(1)
  expect(supervisor.exitCode).toBe(0)
  expect(printed.join('\n')).toMatch(/replaced: it takes \d+ MiB of memory and may take 1/)
})

test('a worker that keeps growing too large is given up for that reason', async () => {
  const { supervisor } = supervise(['serve'], { maxCrashes: 1 }, 2 ** 20)
  await supervisor.start()
  await expect.poll(() => supervisor.state, { timeout: 5000 }).toBe('failed')
  expect(supervisor.failure).toMatch(/takes \d+ MiB of memory and may take 1/)
})

test('a worker may take long to save while it makes progress', async () => {
  const { supervisor } = supervise(['saving'], { stopMs: 400 })
  await supervisor.start()
  const begun = performance.now()
  await supervisor.stop()
  expect(performance.now() - begun).toBeGreaterThan(900)
  expect(supervisor.exitCode).toBe(0)
})

test('the report of a killed worker names the signal', async () => {
  const { supervisor } = supervise(['serve'], { firstPauseMs: 60_000, longestPauseMs: 60_000 })
  await supervisor.start()
  process.kill(supervisor.pid!, 'SIGKILL')
  await expect.poll(() => supervisor.state).toBe('restarting')
  expect(supervisor.exitCode).toBe(-9)
})

test('stop during a pause, and before any start', async () => {
  const { supervisor } = supervise(['crash'], { firstPauseMs: 60_000, longestPauseMs: 60_000 })
  const start = supervisor.start()
  start.catch(() => {})
  await expect.poll(() => supervisor.state).toBe('restarting')
  await supervisor.stop()
  await expect(start).rejects.toThrow('stopped')
  await supervise(['serve']).supervisor.stop()
})

/** One worker behind a router, as a server has it. */
function routed(args: readonly string[], timing: Partial<SupervisorTiming> = {}) {
  const { supervisor } = supervise(args, timing)
  const replica = {
    id: 'w',
    numInFlight: 0,
    numGiven: 0,
    neverServed: false,
    get client() {
      return supervisor.client
    },
    get engine() {
      return supervisor.engine
    },
    get state() {
      return supervisor.state
    },
    get reason() {
      return supervisor.reason
    },
  }
  const router = new Router(() => [replica])
  const models = createRegistry([{ id: 'goose', tokenizer: byteCodec, source: router }])
  const app = buildApp({ models, keys: [], host: '127.0.0.1', version: '1' })
  return { supervisor, app }
}

test('requests that have not started when the only worker dies are answered by its successor', async () => {
  const file = join(mkdtempSync(join(tmpdir(), 'skein-hold-')), 'started')
  const { supervisor, app } = routed(['hold-once', file])
  await supervisor.start()
  const open = Array.from({ length: 4 }, () => postTo(app, COMPLETIONS, { prompt: 'hi' }))
  await expect.poll(() => supervisor.engine?.stats.waiting ?? 0).toBe(4)
  process.kill(supervisor.pid!, 'SIGKILL')
  for (const reply of await Promise.all(open)) {
    expect(reply.statusCode).toBe(200)
    expect(reply.json().choices[0].text).toBe('ok')
  }
})

test.skipIf(process.platform !== 'linux')(
  'a stopped worker is known by its silence, and its requests go to the next one',
  async () => {
    const file = join(mkdtempSync(join(tmpdir(), 'skein-stop-')), 'started')
    const { supervisor, app } = routed(['hold-once', file], { silentMs: 1000 })
    await supervisor.start()
    const pid = supervisor.pid!
    const open = postTo(app, COMPLETIONS, { prompt: 'hi' })
    await expect.poll(() => supervisor.engine?.stats.waiting ?? 0).toBe(1)
    process.kill(pid, 'SIGSTOP')
    await expect.poll(() => supervisor.state, { timeout: 10_000 }).not.toBe('ready')
    expect((await app.inject({ url: '/readyz' })).statusCode).toBe(503)
    expect((await open).statusCode).toBe(200)
    expect(() => process.kill(pid, 0)).toThrow()
  },
)

test.skipIf(process.platform !== 'linux')('a worker that computes is no silent one', async () => {
  const { supervisor } = supervise(['busy'], { silentMs: 400 })
  await supervisor.start()
  const pid = supervisor.pid
  await delay(2000)
  expect(supervisor.pid).toBe(pid)
  expect(supervisor.state).toBe('ready')
})

test('a worker that never becomes ready is ended', async () => {
  const { supervisor, lines } = supervise(['load-for-ever'], { loadMs: 300, maxCrashes: 2 })
  await expect(supervisor.start()).rejects.toThrow('loading without progress')
  expect(lines.join('')).toContain('given up')
})
