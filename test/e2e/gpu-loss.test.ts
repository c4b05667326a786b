/** A server whose worker loses its GPU, as when a driver restarts. */
import { setTimeout as delay } from 'node:timers/promises'
import { expect, onTestFinished, test } from 'vitest'
import type { WorkerRecord } from '../../src/gateway/contract.ts'
import { serve } from '../helpers/cli.ts'
import { openStream } from '../helpers/streams.ts'
import { WEBGPU_PROBLEM } from '../helpers/webgpu.ts'

const LOSS = { NODE_OPTIONS: `--import ${new URL('../helpers/lose-gpu.mjs', import.meta.url)}` }

test.skipIf(WEBGPU_PROBLEM !== null)(
  'a worker whose GPU is lost ends, and the next continues its sessions',
  { tags: 'night', timeout: 300_000 },
  async () => {
    const flags = ['--device', 'webgpu', '--slots', '4', '--step-tokens', '16']
    const server = await serve(flags, 'serve', LOSS)
    onTestFinished(async () => {
      await server.stop()
    })
    const worker = async () => ((await (await fetch(`${server.url}/api/workers`)).json()) as WorkerRecord[])[0]!
    const turn = async () => {
      const body = JSON.stringify({ prompt: 'Once', max_tokens: 4, session_id: 'kept' })
      const headers = { 'content-type': 'application/json' }
      return (await fetch(`${server.url}/v1/completions`, { method: 'POST', headers, body })).json()
    }
    expect(await turn()).toMatchObject({ session: { turn: 1 } })
    const lose = async () => {
      const { pid } = await worker()
      process.kill(pid!, 'SIGUSR2')
      return pid
    }
    const next = async (pid: number | null) => {
      while ((await worker()).pid === pid || (await fetch(`${server.url}/readyz`)).status !== 200) await delay(50)
    }
    const stream = openStream(server.url, { prompt: 'Once', max_tokens: 4000 })
    while (stream.numEvents < 2) await delay(10)
    const first = await lose()
    expect((await stream.end).error).toMatch(/the model failed on this request/)
    await next(first)
    expect(server.output.join('\n')).toMatch(/the GPU was lost/)
    expect(await turn()).toMatchObject({ session: { turn: 2 } })
    // Without requests it is noticed by the next one.
    const second = await lose()
    expect(await turn()).toMatchObject({ error: { code: 'kernel_failed' } })
    await next(second)
    expect(await turn()).toMatchObject({ session: { turn: 3 } })
  },
)
