/**
 * Faults of a cluster, chosen by a seed. Workers are killed, stopped or cut off past their lease, or have clocks that
 * jump by days. The database crashes, its clock is set, or it fails over to its synchronous standby. The storage of
 * states, a double of S3, is slow, refuses, is full, or ends in the middle. Meanwhile sessions continue and move from
 * worker to worker. A proxy of the test cuts networks. Every reported turn must exist, once, under one owner at a time,
 * and equal the answer of a single worker. SKEIN_FAULTS sets the most faults, SKEIN_FAULT_SECONDS the duration,
 * SKEIN_SEED the seed.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { request as ask, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Database } from '../../src/cluster/database.ts'
import { movesOf } from '../../src/cluster/moves.ts'
import { stateSocketOf } from '../../src/cluster/state-socket.ts'
import { channelToChild } from '../../src/engine/client/process-channel.ts'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import type { EngineEvent } from '../../src/engine/messages.ts'
import { SkeinError } from '../../src/errors.ts'
import { requestOf, SAMPLING } from '../engine/kit.ts'
import { DEMO } from '../helpers/cli.ts'
import {
  type Faults,
  newTalks,
  newTally,
  note,
  sharedFaults,
  type Talk,
  think,
  untilAllWentOn,
} from '../helpers/cluster-faults.ts'
import { checkHistory, keepHistory, retried, shiftedClock } from '../helpers/cluster-history.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'
import { randomOf } from '../helpers/random.ts'
import { S3_KEYS, type S3Double, startS3Double } from '../helpers/s3-double.ts'
import { startProxy, type TcpProxy } from '../helpers/tcp-proxy.ts'

const WORKER = join(import.meta.dirname, '../../dist/host/worker.js')
const NUM_FAULTS = Number(process.env.SKEIN_FAULTS ?? (process.env.SKEIN_SLOW ? 100 : 4))
const SEED = Number(process.env.SKEIN_SEED ?? 1)
const FAULT_MS = 1000 * Number(process.env.SKEIN_FAULT_SECONDS ?? Number.POSITIVE_INFINITY)
/** On a device answers depend on the other rows in a step of more than 16 tokens. */
const CHOICE = { model: DEMO, device: 'cpu', slots: 6, threads: 1 }
const NUM_WORKERS = 3
const NUM_SESSIONS = 4
const PROGRESS_MS = 90_000
const TURN_MS = 20_000

interface Worker {
  readonly node: string
  /** The address of its node, as others know it. */
  readonly url: string
  /** Its connection to the database. */
  readonly way: TcpProxy | null
  readonly child: ChildProcess
  readonly client: RemoteEngineClient
}

interface Place {
  readonly node: string
  readonly url: string
  readonly way: TcpProxy | null
}

async function startWorker(place: Place, choice: object, clockMs: readonly number[] = []): Promise<Worker> {
  const child = fork(WORKER, [JSON.stringify({ ...CHOICE, ...choice })], {
    serialization: 'advanced',
    execArgv: clockMs.length === 0 ? [] : ['--import', shiftedClock(...clockMs)],
    env: { ...process.env, ...S3_KEYS, AWS_ENDPOINT_URL: s3.url },
  })
  const client = await RemoteEngineClient.connect(channelToChild(child))
  return { ...place, child, client }
}

/** It continues from the last reported turn, whatever was written and not reported since. */
function turnOf(talk: number, turn: number, id: string, from?: number) {
  const prompt = Int32Array.from({ length: 6 }, (_, at) => 1 + ((at * 37 + turn * 101 + talk * 53) % 250))
  const use = { ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' } as const
  const session = { id, ...use, ...(from === undefined ? {} : { from }) }
  const sampling = { ...SAMPLING, seed: BigInt(turn), topP: 0.9 }
  return requestOf({ id: `${id} ${turn} ${Math.random()}`, prompt, maxTokens: 6, sampling, session })
}

async function answerTo(client: RemoteEngineClient, request: ReturnType<typeof turnOf>, ms = TURN_MS) {
  let text = ''
  for await (const event of client.generate(request, AbortSignal.timeout(ms)) as AsyncIterable<EngineEvent>) {
    if (event.type === 'text') text += event.text
    if (event.type === 'finish') return { text, session: event.session! }
    if (event.type === 'error') throw SkeinError.fromShape(event.error)
  }
  throw new Error('an answer without an end')
}

let postgres: Postgres
let database: Database
let s3: S3Double
/** The test's own connection to the database, and to offered states. */
let way: TcpProxy
let name: string
const stateServer = startStateServer()
const workers: Worker[] = []
let numStarted = 0

/** The server of all nodes: it connects to the workers' sockets, and ends some states in the middle. */
function startStateServer() {
  const server = createServer(({ url = '', headers }, reply) => {
    const [, , , worker = '', key] = url.split('/')
    const socketPath = stateSocketOf(decodeURIComponent(worker))
    const caller = { 'x-skein-caller': String(headers['x-skein-caller']) }
    ask({ socketPath, path: `/${key}`, headers: caller })
      .once('error', () => reply.writeHead(404).end())
      .once('response', (offer) => {
        reply.writeHead(offer.statusCode!, offer.headers)
        if (Math.random() < 0.2) offer.once('data', (part) => reply.write(part, () => reply.destroy()))
        else offer.pipe(reply)
      })
      .end()
  })
  return server.listen(0, '127.0.0.1')
}

const urlAt = (port: number) => `postgres://skein@127.0.0.1:${port}/${name}`

async function addWorker(clockMs: readonly number[] = []): Promise<void> {
  const node = `node${numStarted++}`
  const { port } = stateServer.address() as AddressInfo
  const place = {
    ...{ node, url: `http://127.0.0.1:${port}/${node}` },
    way: await startProxy(() => postgres.port),
  }
  const cluster = {
    ...{ database: urlAt(place.way.port), blobs: 's3://bucket/states', model: 'demo' },
    // So that they are in the storage, and move like large ones.
    ...{ node, url: place.url, maxInlineBytes: 1000 },
  }
  workers.push(await startWorker(place, { cluster, durable: true }, clockMs))
}

/** What its server does for a dead worker, and time for one that hangs. */
async function expire({ node }: Worker): Promise<void> {
  await retried(() => database.query('update worker set expires = now() where node = $1', [node]))
}

beforeAll(async () => {
  if (NO_POSTGRES !== null) return
  s3 = await startS3Double()
  postgres = await startPostgres({ hasStandby: true })
  name = postgres.newDatabase().split('/').at(-1)!
  way = await startProxy(() => postgres.port)
  database = await Database.open(urlAt(way.port))
  await keepHistory(database)
  for (let i = 0; i < NUM_WORKERS; i++) await addWorker()
}, 120_000)

afterAll(async () => {
  for (const { child } of workers) child.kill('SIGKILL')
  await database?.close()
  for (const each of [way, ...workers.map((worker) => worker.way)]) each?.close()
  postgres?.remove()
  stateServer.close()
  stateServer.closeAllConnections()
  await s3?.close()
})

test.skipIf(NO_POSTGRES !== null)(
  `no reported turn is lost or duplicated in ${NUM_FAULTS} faults`,
  async () => {
    const random = randomOf(SEED)
    const talks = newTalks(NUM_SESSIONS)
    const { counts, count } = newTally()
    let isOver = false
    let numFaults = 0

    const converse = async (talk: Talk, index: number) => {
      let at: Worker | undefined
      while (!isOver) {
        at ??= workers[Math.floor(Math.random() * workers.length)]!
        try {
          const request = turnOf(index, talk.answers.length, talk.id, talk.head)
          const { text, session } = await answerTo(at.client, request)
          note(talk, text, session)
          count('told')
          await think()
          // Now and then another worker is asked, as by a gateway without better knowledge, and now and then the
          // session moves.
          const chance = Math.random()
          if (chance < 0.2) await at.client.call('sessions.release', { tenant: '', id: talk.id })
          if (chance < 0.4) at = undefined
        } catch (error) {
          if (error instanceof Error && error.name === 'AssertionError') throw error
          const { code, location } = SkeinError.from(error)
          // Also not_found, from a worker that believes in its lease and has not heard of the last turns. If those were
          // lost, the session would stop, because it continues from no others.
          count(code)
          at = workers.find(({ url }) => url === location)
          if (at === undefined) await delay(50)
        }
      }
    }

    /** Workers that start while others continue. */
    const starting = new Set<Promise<void>>()
    const replace = async (victim: Worker, clockMs: readonly number[] = []) => {
      workers.splice(workers.indexOf(victim), 1)
      const gone = once(victim.child, 'exit')
      victim.child.kill('SIGKILL')
      await gone
      await expire(victim)
      victim.way?.close()
      const one = addWorker(clockMs).finally(() => starting.delete(one))
      starting.add(one)
    }

    const faults: Faults = {
      async kill() {
        await replace(workers[random(workers.length)]!)
      },
      /** It still believes in its lease: only fences keep it from writing. */
      async stop() {
        const victim = workers[random(workers.length)]!
        victim.child.kill('SIGSTOP')
        await expire(victim)
        await delay(500 + random(1000))
        victim.child.kill('SIGCONT')
      },
      async failover() {
        await postgres.failOver()
        for (const each of [way, ...workers.map((worker) => worker.way)]) each?.drop()
      },
      /** What it sends meanwhile arrives when others have its sessions. */
      async partition() {
        const victim = workers[random(workers.length)]!
        victim.way?.cut()
        await expire(victim)
        await delay(500 + random(2000))
        victim.way?.mend()
      },
      /** A new worker whose clock jumps between two times, each up to eleven days off, in either direction. */
      async clock() {
        const off = () => (random(2000) - 1000) * 1_000_000
        await replace(workers[random(workers.length)]!, [off(), off()])
      },
      ...sharedFaults(postgres, database, s3, random),
    }

    const failures: unknown[] = []
    const talking = talks.map((talk, i) =>
      converse(talk, i).catch((error) => {
        failures.push(error)
      }),
    )
    const begun = performance.now()
    for (let i = 0; i < NUM_FAULTS && performance.now() < begun + FAULT_MS; i++) {
      const names = Object.keys(faults)
      const name = names[i < names.length ? i : random(names.length)]!
      count(`fault: ${name}`)
      await faults[name]!()
      numFaults++
      const what = `${name}, fault ${i} of seed ${SEED}`
      await untilAllWentOn(talks, failures, PROGRESS_MS, what)
      if (failures.length > 0) break
      await Promise.all(starting)
    }
    isOver = true
    await Promise.all(talking)
    expect(failures).toEqual([])

    const solo = await startWorker({ node: 'solo', url: '', way: null }, {})
    workers.push(solo)
    await Promise.all(
      talks.map(async ({ id, answers }, index) => {
        for (const [turn, told] of answers.entries()) {
          const { text } = await answerTo(solo.client, turnOf(index, turn, id), 60_000)
          expect([id, turn, told]).toEqual([id, turn, text])
        }
      }),
    )

    const { rows, fences } = await retried(() => checkHistory(database))
    expect(counts.told).toBeGreaterThan(numFaults)
    const moves = await retried(() => movesOf(database, 1000))
    expect(moves.latest.some(({ isDirect }) => isDirect)).toBe(true)
    if (process.env.SKEIN_FAULTS)
      process.stderr.write(
        `${JSON.stringify({ seed: SEED, faults: numFaults, ...counts, rows, fences, moves: moves.count, direct: moves.latest.filter(({ isDirect }) => isDirect).length })}\n`,
      )
  },
  60_000 + NUM_FAULTS * 30_000,
)
