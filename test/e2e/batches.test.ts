/** A batch of a real server that is killed again and again: every request has one result. */
// @module-tag night
import OpenAI, { toFile } from 'openai'
import { afterEach, expect, test, vi } from 'vitest'
import { type RunningServer, serve } from '../helpers/cli.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const LINES = 40
const WAIT = { timeout: 60_000, interval: 20 }

let server: RunningServer | null = null
afterEach(() => server?.stop())

test('kill -9 loses no result and duplicates none', { timeout: 200_000 }, async () => {
  const args = ['--data-dir', temporaryFolder(), '--slots', '4', '--threads', '1']
  const start = async () => {
    server = await serve(args)
    return new OpenAI({ apiKey: 'none', baseURL: `${server.url}/v1`, maxRetries: 0 })
  }
  const kill = async () => {
    const { process: child } = server!
    const ended = new Promise((resolve) => child.once('exit', resolve))
    child.kill('SIGKILL')
    await ended
  }
  let client = await start()
  const rows = Array.from({ length: LINES }, (_, i) => {
    const body = { messages: [{ role: 'user', content: `Hello ${i}.` }], max_tokens: 20 }
    return { custom_id: `row-${i}`, method: 'POST', url: '/v1/chat/completions', body }
  })
  const text = rows.map((row) => JSON.stringify(row)).join('\n')
  const file = await toFile(Buffer.from(text), 'in.jsonl')
  const { id: input_file_id } = await client.files.create({ file, purpose: 'batch' })
  const endpoint = '/v1/chat/completions'
  const { id } = await client.batches.create({ input_file_id, endpoint, completion_window: '24h' })
  for (const least of [1, LINES / 2]) {
    await vi.waitFor(async () => {
      const { request_counts } = await client.batches.retrieve(id)
      expect(request_counts?.completed).toBeGreaterThanOrEqual(least)
    }, WAIT)
    await kill()
    client = await start()
  }
  const done = await vi.waitFor(async () => {
    const batch = await client.batches.retrieve(id)
    expect(batch.status).toBe('completed')
    return batch
  }, WAIT)
  expect(done.request_counts).toEqual({ total: LINES, completed: LINES, failed: 0 })
  const output = await (await client.files.content(done.output_file_id!)).text()
  const lines = output.trim().split('\n')
  const ids = lines.map((line) => (JSON.parse(line) as { custom_id: string }).custom_id)
  expect(ids).toEqual(rows.map(({ custom_id }) => custom_id))
})
