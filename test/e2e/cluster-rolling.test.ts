/**
 * A new release in a cluster under load, as Kubernetes rolls it out: for each of three nodes a new one starts and an
 * old one is told to end; then the same for two gateways, which load balancers drop first. Clients with and without
 * sessions, streaming or not, send requests all the time, and none may see a failure or a different answer.
 */
// @module-tag night
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const NODE = ['--device', 'cpu', '--threads', '1', '--slots', '6']
const NUM_NODES = 3
const NUM_SESSIONS = 3
/** Clients without a session; all but the first ask for so much that an answer is running whenever a node ends. */
const NUM_OTHERS = 3
const LONG_TOKENS = 200
const PAUSE_MS = 100

// Two and a half minutes.
describe.skipIf(NO_POSTGRES !== null)('a new release', { timeout: 300_000 }, () => {
  let postgres: Postgres
  let members: string[]
  let solo: RunningServer
  const nodes: RunningServer[] = []
  const gateways: RunningServer[] = []
  const blobs = pathToFileURL(mkdtempSync(join(tmpdir(), 'skein-blobs-'))).href
  let numStarted = 0

  const startNode = async () => {
    const own = ['--blobs', blobs, '--node-name', `node${numStarted++}`]
    nodes.push(await serve([...NODE, ...members, ...own]))
  }
  const startGateway = async () => {
    gateways.push(await serve(members, 'gateway'))
  }

  beforeAll(async () => {
    postgres = await startPostgres()
    members = ['--cluster', postgres.newDatabase()]
    const starting = Array.from({ length: NUM_NODES }, startNode)
    await Promise.all([...starting, startGateway(), startGateway()])
    solo = await serve(NODE)
  }, 300_000)

  afterAll(() => {
    for (const server of [...nodes, ...gateways, solo]) server?.process.kill('SIGKILL')
    postgres?.remove()
  })

  const ask = async (url: string, body: object, isStream: boolean) => {
    const reply = await postJson(`${url}/v1/completions`, {
      temperature: 0,
      ignore_eos: true,
      stream: isStream,
      ...body,
    })
    const text = await reply.text()
    if (reply.status !== 200) throw new Error(`${reply.status}: ${text}`)
    if (!isStream) return (JSON.parse(text) as { choices: { text: string }[] }).choices[0]!.text
    const events = text.split('\n\n').filter((event) => event !== '')
    if (events.at(-1) !== 'data: [DONE]') throw new Error(`a stream ended with ${events.at(-1)}`)
    return events
      .slice(0, -1)
      .map((event) => JSON.parse(event.slice('data: '.length)))
      .map(({ choices }: { choices: { text: string }[] }) => choices[0]?.text ?? '')
      .join('')
  }
  const promptOf = (client: number, turn: number) =>
    Array.from({ length: 5 }, (_, i) => 1 + ((i * 37 + client * 53 + turn * 101) % 250))

  test('is installed without a failed request, and sessions give the same answers', async () => {
    let isOver = false
    const failures: unknown[] = []
    /** Answers of each client, in order. */
    const told: string[][] = Array.from({ length: NUM_SESSIONS + NUM_OTHERS }, () => [])
    const ended: RunningServer[] = []
    const bodyOf = (client: number, turn: number) => {
      const prompt = promptOf(client, turn)
      const max_tokens = client > NUM_SESSIONS ? LONG_TOKENS : 6
      return client < NUM_SESSIONS ? { prompt, max_tokens, session_id: `s${client}` } : { prompt, max_tokens }
    }
    const isStream = (client: number) => client % 2 === 1
    const clients = told.map(async (answers, client) => {
      while (!isOver) {
        const { url } = gateways[(client + answers.length) % gateways.length]!
        try {
          const body = bodyOf(client, answers.length)
          answers.push(await ask(url, body, isStream(client)))
          await delay(PAUSE_MS)
        } catch (error) {
          failures.push(new Error(`client ${client}, turn ${answers.length}: ${error}`))
          return
        }
      }
    })
    const goOn = async () => {
      const before = told.map(({ length }) => length)
      while (failures.length === 0 && told.some(({ length }, i) => length <= before[i]!)) await delay(50)
    }
    const end = async (server: RunningServer) => {
      expect(await server.stop()).toBe(0)
      ended.push(server)
    }
    await goOn()
    for (let i = 0; i < NUM_NODES; i++) {
      await startNode()
      await end(nodes.shift()!)
      await goOn()
    }
    for (let i = 0; i < 2; i++) {
      await startGateway()
      const old = gateways.shift()!
      // Like the preStop hook of its pod: requests already sent there arrive.
      await delay(500)
      await end(old)
      await goOn()
    }
    isOver = true
    await Promise.all(clients)
    expect(failures).toEqual([])
    expect(ended.flatMap(({ output }) => output)).toContainEqual(
      expect.stringMatching(/^skein: waiting up to \d+ s for \d+ requests to finish/),
    )
    await Promise.all(
      told.map(async (answers, client) => {
        for (const [turn, answer] of answers.entries()) {
          const alone = await ask(solo.url, bodyOf(client, turn), isStream(client))
          expect([client, turn, answer]).toEqual([client, turn, alone])
        }
      }),
    )
    const { moves } = (await (await fetch(`${gateways[0]!.url}/api/cluster`)).json()) as {
      moves: { count: number }
    }
    expect(moves.count).toBeGreaterThan(0)
  })
})
