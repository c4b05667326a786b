/**
 * What happens to 128 streams when a worker is killed, a model is replaced or the server is told to stop. Takes
 * minutes: runs with SKEIN_SLOW=1, and prints the figures of docs/dev/measurements.md. Uses the device that `auto`
 * chooses; on a GPU a worker also fails with a CUDA error, and the GPU's memory is measured.
 */
// @module-tag night
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { describe, expect, onTestFinished, test } from 'vitest'
import { cudaReport } from '../../src/backend/cuda/report.ts'
import { writeRandomWeights } from '../../src/bench/random-model.ts'
import type { SystemInfo, WorkerRecord } from '../../src/gateway/contract.ts'
import { DEMO, type RunningServer, serve as serveUntilStopped, workersOf } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { ENDLESS, type OpenStream, openStream, type StreamEnd } from '../helpers/streams.ts'

const NUM_STREAMS = 128

function report(title: string, figures: Record<string, number | string>): void {
  process.stdout.write(`${title}: ${JSON.stringify(figures)}\n`)
}

/** A failed test leaves nothing running. */
async function serve(flags: readonly string[], variables: Record<string, string> = {}): Promise<RunningServer> {
  const server = await serveUntilStopped(flags, 'serve', variables)
  onTestFinished(() => {
    server.process.kill('SIGKILL')
  })
  return server
}

const seconds = (ms: number) => Number((ms / 1000).toFixed(2))

async function post({ url }: RunningServer, path: string, body: object) {
  return postJson(url + path, body)
}

const statusOf = async ({ url }: RunningServer) => (await fetch(`${url}/readyz`)).status

async function numWaiting({ url }: RunningServer): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text()
  return Number(/^skein_num_requests_waiting\{.*\} (\d+)$/m.exec(text)?.[1])
}

async function until(isTrue: () => Promise<boolean>, limitMs = 60_000): Promise<number> {
  const begun = performance.now()
  while (!(await isTrue())) {
    if (performance.now() - begun > limitMs) throw new Error('it did not happen in time')
    await delay(10)
  }
  return performance.now() - begun
}

function startStreams(server: RunningServer, fields: object, count = NUM_STREAMS): OpenStream[] {
  return Array.from({ length: count }, () => openStream(server.url, fields))
}

const ended = (streams: readonly OpenStream[]): Promise<StreamEnd[]> => Promise.all(streams.map(({ end }) => end))

const HAS_CUDA = cudaReport().devices.length > 0
/**
 * On a GPU 80 answers of the demo model are more tokens than a test can read. A model of many small layers takes
 * milliseconds for a step. It has as many tokens as the demo's vocabulary: others have no text.
 */
function deepModel(): string[] {
  const file = join(mkdtempSync(join(tmpdir(), 'skein-deep-')), 'deep.pth')
  const size = { layers: 128, channels: 256, heads: 4, headSize: 64, ffnSize: 64, vocabSize: 2688 }
  writeRandomWeights(file, { ...size, ranks: { w: 32, a: 32, v: 32, g: 32 } }, { seed: 1, dtype: 'bf16' })
  return [file, '--vocab', DEMO.replace(/pth$/, 'vocab.txt')]
}

/** SIGUSR2 makes a worker's GPU fail. */
const FAULT = { NODE_OPTIONS: `--import ${new URL('../cuda/fault.mjs', import.meta.url)}` }

describe('R13: a worker is killed', () => {
  const causes = ['SIGKILL', 'SIGABRT', ...(HAS_CUDA ? (['SIGUSR2'] as const) : [])] as const
  test.each(causes)('by %s with 128 streams, 48 of them waiting for a slot', { timeout: 300_000 }, async (signal) => {
    const model = HAS_CUDA ? deepModel() : []
    const server = await serve([...model, '--slots', '80'], signal === 'SIGUSR2' ? FAULT : {})
    try {
      const turn = { prompt: 'Once', max_tokens: 8, session_id: 'kept' }
      await (await post(server, '/v1/completions', turn)).json()
      await delay(500)
      const [worker] = await workersOf(server)
      const loadMs = 1000 * (worker!.ready_at! - worker!.created_at)
      const running = startStreams(server, { max_tokens: 60_000 }, 80)
      await until(async () => running.every(({ numEvents }) => numEvents > 0))
      const waiting = startStreams(server, { max_tokens: 50 }, 48)
      await until(async () => (await numWaiting(server)) === 48)
      const killedAt = performance.now()
      process.kill(worker!.pid!, signal)
      const degradedMs = await until(async () => (await statusOf(server)) !== 200)
      await until(async () => (await statusOf(server)) === 200)
      const readyMs = performance.now() - killedAt
      const failed = await ended(running)
      const lastErrorMs = Math.max(...failed.map(({ endedAt }) => endedAt)) - killedAt
      for (const { error } of failed) expect(error).toMatch(/the worker process ended|the model failed/)
      // Requests that had not started are answered by the next worker, and take no time of the test.
      for (const { status, finishReason } of await ended(waiting))
        expect([status, finishReason]).toEqual([200, 'length'])
      const next = await (await post(server, '/v1/completions', turn)).json()
      expect((next as { session: { turn: number } }).session.turn).toBe(2)

      report(`R13, ${signal}`, {
        streams: NUM_STREAMS,
        running: running.length,
        'degraded s': seconds(degradedMs),
        'last error event s': seconds(lastErrorMs),
        'load s': seconds(loadMs),
        'ready again s': seconds(readyMs),
        'waiting ones answered': waiting.length,
      })
      expect(degradedMs).toBeLessThan(2000)
      expect(lastErrorMs).toBeLessThan(2000)
      expect(readyMs).toBeLessThan(loadMs + 5000)
    } finally {
      await server.stop()
    }
  })

  test('with a second worker of the same model, which continues undisturbed', async () => {
    const server = await serve(['--slots', '96', '--replicas', '2'])
    try {
      const turn = { prompt: 'Once', max_tokens: 8, session_id: 'kept' }
      await (await post(server, '/v1/completions', turn)).json()
      await delay(500)
      const streams = startStreams(server, { max_tokens: 300 })
      await until(async () => streams.every(({ numEvents }) => numEvents > 0))
      const [worker] = await workersOf(server)
      process.kill(worker!.pid!, 'SIGKILL')
      let numUnready = 0
      let isOver = false
      const watching = (async () => {
        while (!isOver) {
          if ((await statusOf(server)) !== 200) numUnready++
          await delay(20)
        }
      })()
      const next = await post(server, '/v1/completions', turn)
      expect(next.status).toBe(200)
      const ends = await ended(streams)
      isOver = true
      await watching
      const whole = ends.filter(({ finishReason }) => finishReason === 'length')
      const broken = ends.filter(({ error }) => error !== null)
      expect(whole.length + broken.length).toBe(NUM_STREAMS)
      report('R13, two workers', {
        'answered whole': whole.length,
        'error events': broken.length,
        'times not ready': numUnready,
      })
      expect(broken.length).toBeLessThanOrEqual(66)
      expect(numUnready).toBe(0)
    } finally {
      await server.stop()
    }
  })
})

describe.runIf(HAS_CUDA)('R26: another program fills the GPU', () => {
  test('the worker there goes on, another one is refused with the reason, and a killed one comes back', {
    timeout: 240_000,
  }, async () => {
    const server = await serve(['--device', 'cuda:0', '--slots', '16', '--no-store'])
    const hog = spawn(process.execPath, [fileURLToPath(new URL('../cuda/hog.mjs', import.meta.url))])
    onTestFinished(() => {
      hog.kill('SIGKILL')
    })
    try {
      const first = openStream(server.url, { max_tokens: 60_000 })
      await once(hog.stdout, 'data')
      const seen = first.numEvents
      await until(async () => first.numEvents > seen)
      const [worker] = await workersOf(server)
      const answers = async () => {
        const reply = await post(server, '/v1/completions', { prompt: 'Once', max_tokens: 8 })
        return reply.status
      }
      expect(await answers()).toBe(200)
      expect((await post(server, '/api/workers/start', worker!.spec)).status).toBe(200)
      const ended = async () => (await workersOf(server)).find(({ status }) => status === 'exited')
      const refusedMs = await until(async () => (await ended()) !== undefined)
      const refused = (await ended())!
      expect(refused.last_log.join('\n')).toMatch(/memory/)
      expect(await answers()).toBe(200)

      const last = openStream(server.url, { max_tokens: 60_000 })
      await until(async () => last.numEvents > 0)
      process.kill(worker!.pid!, 'SIGKILL')
      expect((await last.end).error).toMatch(/the worker process ended/)
      const hasWaited = async () => (await workersOf(server)).some(({ restarts }) => restarts > 2)
      await until(hasWaited)
      expect(await statusOf(server)).toBe(503)
      hog.stdin.end()
      const backMs = await until(async () => (await statusOf(server)) === 200)
      expect(await answers()).toBe(200)
      report('R26', {
        'refused after s': seconds(refusedMs),
        'the reason': refused.last_log.find((line) => line.includes('memory')) ?? '',
        'back after s': seconds(backMs),
      })
    } finally {
      await server.stop()
    }
  })
})

describe('R18: SIGTERM', () => {
  test('128 streams end by themselves; new requests are refused at once', async () => {
    const server = await serve(['--slots', '160'])
    const streams = startStreams(server, { max_tokens: 100 })
    await until(async () => streams.every(({ numEvents }) => numEvents > 0))
    const told = performance.now()
    const exit = server.stop()
    await until(async () => (await statusOf(server)) === 503)
    const refused = await post(server, '/v1/completions', { prompt: 'x', max_tokens: 1 })
    expect(refused.status).toBe(503)
    const refusedMs = performance.now() - told
    const ends = await ended(streams)
    for (const { finishReason } of ends) expect(finishReason).toBe('length')
    expect(await exit).toBe(0)
    const allMs = performance.now() - told
    report('R18', { 'refused after s': seconds(refusedMs), 'exit after s': seconds(allMs) })
    expect(refusedMs).toBeLessThan(1000)
    expect(allMs).toBeLessThan(30_000)
  })

  test('streams without an end are cut off and saved at the limit', async () => {
    const data = mkdtempSync(join(tmpdir(), 'skein-r18-'))
    const flags = ['--slots', '160', '--data-dir', data]
    const server = await serve([...flags, '--drain-seconds', '3'])
    const sessions = Array.from({ length: NUM_STREAMS }, (_, i) => `s${i}`)
    const streams = sessions.map((id) =>
      openStream(server.url, { max_tokens: 60_000, session: { id, on_cancel: 'keep' } }),
    )
    await until(async () => streams.every(({ numEvents }) => numEvents > 2))
    const told = performance.now()
    expect(await server.stop()).toBe(0)
    const exitMs = performance.now() - told
    await ended(streams)
    const again = await serve(flags)
    try {
      const list = await (await fetch(`${again.url}/v1/sessions`)).json()
      const { data: kept } = list as { data: { turns: { tokens: number }[] }[] }
      report('R18, cut', { 'exit after s': seconds(exitMs), 'sessions saved': kept.length })
      expect(kept).toHaveLength(NUM_STREAMS)
      for (const { turns } of kept) expect(turns[0]!.tokens).toBeGreaterThan(4)
    } finally {
      await again.stop()
    }
    expect(exitMs).toBeLessThan(30_000)
  })

  test('a second signal stops immediately', async () => {
    const server = await serve(['--slots', '160'])
    const streams = startStreams(server, { max_tokens: 60_000 })
    await until(async () => streams.every(({ numEvents }) => numEvents > 0))
    const broken = Promise.allSettled(streams.map(({ end }) => end))
    const exit = server.stop()
    await delay(300)
    const second = performance.now()
    server.process.kill('SIGTERM')
    expect(await exit).toBe(1)
    const exitMs = performance.now() - second
    await broken
    report('R18, second signal', { 'exit after s': seconds(exitMs) })
    expect(exitMs).toBeLessThan(2000)
  })
})

describe('R17: the model is switched under 64 streams', () => {
  const NUM_SWITCHES = Number(process.env.SKEIN_SWITCHES ?? 100)

  test('every answer is complete, and memory is released', { timeout: 1_800_000 }, async () => {
    const folder = join(mkdtempSync(join(tmpdir(), 'skein-r17-')), 'models')
    mkdirSync(folder)
    for (const name of ['a', 'b']) {
      copyFileSync(DEMO, join(folder, `${name}.pth`))
      copyFileSync(DEMO.replace(/pth$/, 'vocab.txt'), join(folder, `${name}.vocab.txt`))
    }
    writeFileSync(join(folder, 'torn.pth'), readFileSync(DEMO).subarray(0, 5_000_000))
    writeFileSync(join(folder, 'no.pth'), 'no checkpoint')
    const server = await serve(['--without-model', '--no-store', '--model-dir', folder])
    const load = (file: string) =>
      post(server, '/loadmodel', { model_filename: file, model_viewname: 'm', model_strategy: '' })
    let isOver = false
    const ends: StreamEnd[] = []
    const client = async () => {
      while (!isOver) ends.push(await openStream(server.url, { model: 'm', max_tokens: 40 }).end)
    }
    try {
      expect((await load('a.pth')).status).toBe(200)
      const clients = Array.from({ length: 64 }, client)
      await until(async () => ends.length > 64)
      const before = memoryOf(server)
      const gpuBefore = await gpuMemoryOf(server)
      const begun = performance.now()
      for (let i = 0; i < NUM_SWITCHES; i++) {
        if (i % 10 === 3) expect((await load('torn.pth')).status).toBe(500)
        if (i % 10 === 6) expect((await load('no.pth')).status).toBe(500)
        expect((await load(i % 2 === 0 ? 'b.pth' : 'a.pth')).status).toBe(200)
      }
      const switchMs = (performance.now() - begun) / NUM_SWITCHES
      isOver = true
      await Promise.all(clients)
      await until(async () => (await workersOf(server)).filter(isRunning).length === 1)
      const after = memoryOf(server)
      const gpuAfter = await gpuMemoryOf(server)
      const failed = ends.filter(({ finishReason }) => finishReason !== 'length')
      report('R17', {
        switches: NUM_SWITCHES,
        'answers whole': ends.length - failed.length,
        failed: failed.length,
        'a switch takes s': seconds(switchMs),
        'gateway MiB before': before,
        'gateway MiB after': after,
        'GPU MiB before, after': `${gpuBefore}, ${gpuAfter}`,
      })
      expect(failed).toEqual([])
      // A leaked worker on a GPU would be hundreds of MiB.
      expect(gpuAfter).toBeLessThanOrEqual(gpuBefore + 32)
    } finally {
      await server.stop()
    }
  })
})

describe('R12: clients that read slowly, or not at all', () => {
  const [NUM_SLOW, NUM_STOPPED, NUM_MEASURED] = [12, 4, 8]
  /** Large events: the kernel buffers megabytes for a client. */
  const LARGE = { max_tokens: 6000, logprobs: 20 }

  test('use limited memory, are disconnected, and do not slow down others', {
    timeout: 600_000,
  }, async () => {
    const server = await serve(['--slots', '80', '--no-store'])
    const measured = async () => {
      const streams = startStreams(server, { max_tokens: 150 }, NUM_MEASURED)
      const gaps = (await ended(streams)).flatMap(({ gapsMs }) => gapsMs).sort((a, b) => a - b)
      return { p50: gaps[gaps.length >> 1]!, p99: gaps[Math.floor(0.99 * gaps.length)]! }
    }
    const background = (paces: readonly (number | null)[]) =>
      paces.map((bytesPerSecond) => readSlowly(server.url, LARGE, bytesPerSecond))
    const all = NUM_SLOW + NUM_STOPPED

    const quick = background(Array(all).fill(Number.POSITIVE_INFINITY))
    await delay(2000)
    const before = await measured()
    for (const { close } of quick) close()
    await delay(1000)
    const memoryBefore = memoryOf(server)
    const socketsBefore = socketsOf(server)
    const begun = performance.now()

    const slow = background([...Array(NUM_SLOW).fill(10), ...Array(NUM_STOPPED).fill(null)])
    await delay(2000)
    const during = await measured()
    let most = memoryBefore
    const looking = setInterval(() => {
      most = Math.max(most, memoryOf(server))
    }, 200)
    // A client that does not read does not notice: the server has closed its socket.
    await until(async () => socketsOf(server) <= socketsBefore, 300_000)
    const cutMs = performance.now() - begun
    clearInterval(looking)
    for (const { close } of slow) close()
    report('R12', {
      'slow, stopped': `${NUM_SLOW}, ${NUM_STOPPED}`,
      'p50 ms of others, before and during': `${before.p50.toFixed(1)}, ${during.p50.toFixed(1)}`,
      'p99 ms of others, before and during': `${before.p99.toFixed(1)}, ${during.p99.toFixed(1)}`,
      'gateway MiB before, most': `${memoryBefore}, ${most}`,
      'last cut after s': seconds(cutMs),
    })
    const { status } = await post(server, '/v1/completions', { prompt: 'x', max_tokens: 1 })
    expect(status).toBe(200)
    await server.stop()
  })
})

/** A client that reads this many bytes per second; null: none. */
function readSlowly(url: string, fields: object, bytesPerSecond: number | null) {
  const { hostname, port } = new URL(url)
  const socket = connect({ host: hostname, port: Number(port) })
  const body = JSON.stringify({ prompt: 'Once', stream: true, ...ENDLESS, ...fields })
  const head = `POST /v1/completions HTTP/1.1\r\nhost: ${hostname}\r\ncontent-type: application/json`
  socket.write(`${head}\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
  socket.on('error', () => {})
  if (bytesPerSecond === Number.POSITIVE_INFINITY) socket.resume()
  else if (bytesPerSecond === null) socket.pause()
  else {
    // When paused, Node holds some 64 KiB; the kernel holds the rest.
    const timer = setInterval(() => socket.read(bytesPerSecond), 1000)
    socket.on('readable', () => {})
    socket.on('close', () => clearInterval(timer))
  }
  return { close: () => socket.destroy() }
}

const isRunning = ({ status }: WorkerRecord) => status === 'running'

/** Open sockets of the gateway. */
function socketsOf({ process: { pid } }: RunningServer): number {
  const folder = `/proc/${pid}/fd`
  return readdirSync(folder).filter((fd) => {
    try {
      return readlinkSync(join(folder, fd)).startsWith('socket:')
    } catch {
      return false
    }
  }).length
}

/** MiB in use on all GPUs, by any process. */
async function gpuMemoryOf({ url }: RunningServer): Promise<number> {
  const { gpus } = (await (await fetch(`${url}/api/system`)).json()) as SystemInfo
  return gpus.reduce((sum, gpu) => sum + gpu.memory_used_mb, 0)
}

/** Resident memory of the gateway in MiB. */
function memoryOf({ process: { pid } }: RunningServer): number {
  const status = readFileSync(`/proc/${pid}/status`, 'latin1')
  return Math.round(Number(/^VmRSS:\s+(\d+)/m.exec(status)![1]) / 1024)
}
