#!/usr/bin/env node
/**
 * How long a restart of the gateway takes, and whether it keeps sessions: `node scripts/bench-restart.mjs [rounds] [sessions]`.
 * In each round every session has a turn, streams run, the server is killed (kill -9) or asked to end (SIGTERM), and is
 * started again at once. Prints the time to /readyz and to the first next turn of a session, and fails when a session has
 * lost a turn. Needs dist/.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { freePort, startServer } from './server.mjs'

const [rounds = 10, sessions = 32] = process.argv.slice(2).map(Number)
const STREAMS = 32
const folder = mkdtempSync(join(tmpdir(), 'skein-restart-'))
const port = await freePort()
const url = `http://127.0.0.1:${port}`

const start = () => startServer(['--data-dir', folder, '--durable', '--drain-seconds', '0'], { port })

function post(path, body) {
  const headers = { 'content-type': 'application/json' }
  return fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) })
}

async function turn(id) {
  const reply = await post('/v1/completions', { prompt: `User: ${id}\n\nAssistant:`, max_tokens: 8, session_id: id })
  if (reply.status !== 200) throw new Error(`${id}: ${reply.status} ${await reply.text()}`)
  await reply.arrayBuffer()
}

/** The last turn's number: of older turns not all are kept. */
async function turnsOf(id) {
  return (await (await fetch(`${url}/v1/sessions/${encodeURIComponent(id)}`)).json()).head
}

const ids = Array.from({ length: sessions }, (_, i) => `talk ${i}`)
const done = new Map(ids.map((id) => [id, 0]))
const turns = async (some) => {
  await Promise.all(some.map(turn))
  for (const id of some) done.set(id, done.get(id) + 1)
}
const times = { SIGKILL: [], SIGTERM: [] }
let lost = 0
let server = await start()
for (let round = 0; round < rounds; round++) {
  await turns(ids)
  const streams = Array.from({ length: STREAMS }, () =>
    post('/v1/completions', { prompt: 'Once', max_tokens: 60_000, ignore_eos: true, stream: true })
      .then((reply) => reply.text())
      .catch(() => {}),
  )
  await delay(300)
  const signal = round % 2 === 0 ? 'SIGKILL' : 'SIGTERM'
  await server.stop(signal)
  const began = performance.now()
  server = await start()
  const readyMs = performance.now() - began
  await turns(ids.slice(0, 1))
  times[signal].push([readyMs, performance.now() - began])
  await Promise.all(streams)
  for (const id of ids) if ((await turnsOf(id)) !== done.get(id)) lost++
}
await server.stop()
rmSync(folder, { recursive: true, force: true })
for (const [signal, all] of Object.entries(times)) {
  const said = all.map(([first, second]) => `${first.toFixed(0)}, ${second.toFixed(0)}`)
  console.log(`${signal}: ready, first turn after ms: ${said.join('; ')}`)
}
console.log(`${sessions} sessions, ${rounds} restarts: ${lost} lost a turn`)
process.exitCode = lost > 0 ? 1 : 0
