/** A server that is killed and started again; how long it takes is measured by scripts/bench-restart.mjs. */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { type RunningServer, serve } from '../helpers/cli.ts'

test('sessions survive the death of the gateway, and continue where they were', async () => {
  const data = mkdtempSync(join(tmpdir(), 'skein-restart-'))
  const start = () => serve(['--data-dir', data, '--durable'])
  const post = async ({ url }: RunningServer, session_id: string, prompt: string) => {
    const body = JSON.stringify({ prompt, session_id, max_tokens: 12, temperature: 0 })
    const headers = { 'content-type': 'application/json' }
    const reply = await fetch(`${url}/v1/completions`, { method: 'POST', headers, body })
    expect(reply.status).toBe(200)
    return ((await reply.json()) as { choices: [{ text: string }] }).choices[0].text
  }
  const [first, next] = ['User: What is the capital of France?\n\nAssistant:', '\n\nUser: And of Spain?\n\nAssistant:']
  let server = await start()
  // The same conversation, of which one is not interrupted.
  await post(server, 'whole', first)
  const wanted = await post(server, 'whole', next)
  await post(server, 'broken', first)
  const killed = new Promise((resolve) => server.process.once('exit', resolve))
  server.process.kill('SIGKILL')
  await killed
  server = await start()
  const got = await post(server, 'broken', next)
  const turns = await fetch(`${server.url}/v1/sessions/broken`).then((reply) => reply.json())
  await server.stop()
  expect(got).toBe(wanted)
  expect((turns as { turns: unknown[] }).turns).toHaveLength(2)
})
