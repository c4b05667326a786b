/**
 * `skein serve --gpus 0,1,…` on real GPUs: the built command, a worker on each, a session that moves, one that dies.
 */
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { cudaReport } from '../../src/backend/cuda/report.ts'
import type { SystemInfo, WorkerRecord } from '../../src/gateway/contract.ts'
import { type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { ENDLESS, openStream } from '../helpers/streams.ts'
import { describeCuda } from './kit.ts'

const LOADED = { timeout: 120_000 }
const PROMPTS = ['Once upon a time', ' and then', ' but the', ' so they']
const STREAMS_EACH = 32
const ERRORS_WITHIN_MS = 2000

interface Reply {
  readonly choices: readonly { readonly text: string }[]
  readonly session: { readonly turn: number }
}

const numGpus = cudaReport().devices.length

describeCuda('a server of several GPUs', () => {
  let server: RunningServer
  const get = async <T>(path: string) => (await (await fetch(server.url + path)).json()) as T
  const workers = () => get<WorkerRecord[]>('/api/workers')
  const phases = async () => (await workers()).map(({ phase }) => phase)
  const allReady = Array.from({ length: numGpus }, () => 'ready')

  async function turn(session_id: string, prompt: string, at = ''): Promise<Reply> {
    const reply = await postJson(`${server.url}${at}/v1/completions`, {
      prompt,
      session_id,
      max_tokens: 12,
      ...ENDLESS,
    })
    expect(reply.status).toBe(200)
    return (await reply.json()) as Reply
  }

  beforeAll(async () => {
    const gpus = Array.from({ length: numGpus }, (_, i) => i).join(',')
    server = await serve(['--gpus', gpus, '--durable', '--slots', '128'])
    await vi.waitFor(async () => expect(await phases()).toEqual(allReady), LOADED)
  }, 180_000)
  afterAll(async () => {
    expect(await server.stop()).toBe(0)
  })

  test('each GPU has a worker of its own, which reports it', async () => {
    const devices = (await workers()).map(({ info }) => info!.device.split(' ')[0])
    expect(devices).toEqual(allReady.map((_, i) => `cuda:${i}`))
    // A context alone takes hundreds of megabytes.
    const { gpus } = await get<SystemInfo>('/api/system')
    const used = gpus.filter(({ memory_used_mb }) => memory_used_mb > 200)
    expect(used.length).toBeGreaterThanOrEqual(numGpus)
  })

  test('a session that moves between GPUs gives the answers of one that stays', async () => {
    const stays: string[] = []
    const moves: string[] = []
    const all = await workers()
    for (const [i, prompt] of PROMPTS.entries()) {
      stays.push((await turn('stays', prompt)).choices[0]!.text)
      const at = `/api/workers/${all[i % numGpus]!.worker_id}/proxy`
      const { choices, session } = await turn('moves', prompt, at)
      expect(session.turn).toBe(i + 1)
      moves.push(choices[0]!.text)
    }
    expect(moves).toEqual(stays)
  })

  test('a worker that dies costs its own streams an error; other GPUs continue', async () => {
    await expect.poll(phases, LOADED).toEqual(allReady)
    const [victim] = await workers()
    const count = STREAMS_EACH * numGpus
    const streams = Array.from({ length: count }, () => openStream(server.url, { max_tokens: 3000 }))
    await expect.poll(() => streams.every(({ numEvents }) => numEvents > 0), LOADED).toBe(true)
    const killed = performance.now()
    process.kill(victim!.pid!, 'SIGKILL')
    const ends = await Promise.all(streams.map(({ end }) => end))
    const failed = ends.filter(({ error }) => error !== null)
    // A busy worker may have one request more than another.
    expect(Math.abs(failed.length - STREAMS_EACH)).toBeLessThanOrEqual(numGpus - 1)
    for (const { endedAt } of failed) expect(endedAt - killed).toBeLessThan(ERRORS_WITHIN_MS)
    for (const { error, finishReason } of ends) if (error === null) expect(finishReason).toBe('length')
    await expect.poll(phases, LOADED).toEqual(allReady)
    expect((await turn('stays', PROMPTS[0]!)).session.turn).toBe(PROMPTS.length + 1)
  }, 180_000)
})
