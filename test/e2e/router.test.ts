/**
 * Many sessions of very unequal use over eight worker processes; one is killed, another added, and the server
 * restarted. Measures how evenly the work is spread and how often a session finds its state in place, and checks that
 * none is lost. Also measures how long a state of a large model takes to move. Takes minutes: runs with SKEIN_SLOW=1,
 * and prints the figures of docs/dev/measurements.md. With SKEIN_GPUS=0,1,2,3 two of the workers are on each GPU.
 */
// @module-tag night
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, describe, expect, onTestFinished, test } from 'vitest'
import { writeRandomWeights } from '../../src/bench/random-model.ts'
import { seededRandom } from '../../src/bench/serve/random.ts'
import { DEMO, type RunningServer, serve, workersOf } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { ENDLESS } from '../helpers/streams.ts'

const NUM_WORKERS = 8
const NUM_GPUS = process.env.SKEIN_GPUS?.split(',').length ?? 1
const NUM_SESSIONS = 2000
/** In each phase: before a worker dies, after that, with another one, after the restart. */
const TURNS_OF_PHASE = 1500

const folder = mkdtempSync(join(tmpdir(), 'skein-router-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** The value of every sample of a metric, by its printed labels. */
async function samplesOf({ url }: RunningServer, name: string): Promise<Map<string, number>> {
  const text = await (await fetch(`${url}/metrics`)).text()
  const lines = text.matchAll(new RegExp(`^${name}\\{(.*)\\} (\\S+)$`, 'gm'))
  return new Map([...lines].map(([, labels, value]) => [labels!, Number(value)]))
}

interface Figures {
  readonly hits: number
  readonly spills: number
  /** Answers of each worker. */
  readonly answers: ReadonlyMap<string, number>
  /** Sums of the requests in flight there. */
  readonly inFlight: ReadonlyMap<string, number>
  readonly seconds: number
}

async function figuresOf(server: RunningServer): Promise<Figures> {
  const routed = [...(await samplesOf(server, 'skein_router_requests_total'))]
  const of = (outcome: string) => {
    const isMeant = (labels: string) => labels.includes('kind="session"') && labels.includes(`outcome="${outcome}"`)
    return routed.find(([labels]) => isMeant(labels))?.[1] ?? 0
  }
  const counts = await samplesOf(server, 'skein_time_to_first_token_seconds_count')
  const byWorker = [...counts].map(([labels, count]) => [/worker="([^"]+)"/.exec(labels)?.[1] ?? '', count] as const)
  return { hits: of('hit'), spills: of('spill'), answers: new Map(byWorker), inFlight: new Map(), seconds: 0 }
}

/** Requests in flight at each worker, sampled repeatedly. */
class InFlight {
  readonly #sums = new Map<string, number>()
  #isOver = false
  readonly #watching: Promise<void>

  constructor(server: RunningServer) {
    this.#watching = this.#watch(server)
  }

  async end(): Promise<ReadonlyMap<string, number>> {
    this.#isOver = true
    await this.#watching
    return this.#sums
  }

  async #watch(server: RunningServer): Promise<void> {
    while (!this.#isOver) {
      const now = await samplesOf(server, 'skein_worker_in_flight')
      for (const [worker, count] of now) this.#sums.set(worker, (this.#sums.get(worker) ?? 0) + count)
      await delay(200)
    }
  }
}

/** Users who talk in sessions, session k with frequency 1/k (Zipf), and none of them in two at once. */
class Crowd {
  readonly failed: string[] = []
  /** Turns that came back with the wrong number. */
  readonly lost: string[] = []
  /** The last turn of each session, as its client knows it. */
  readonly #turns = new Map<number, number>()
  /** Failed while running: one more turn may be on disk. */
  readonly #unsure = new Set<number>()
  readonly #busy = new Set<number>()
  readonly #random = seededRandom(25)
  readonly #upTo: readonly number[]

  constructor() {
    let total = 0
    this.#upTo = Array.from({ length: NUM_SESSIONS }, (_, k) => {
      total += 1 / (k + 1)
      return total
    })
  }

  get numSessions(): number {
    return this.#turns.size
  }

  /** `numClients` at a time; `at` is called with the number of turns that have started. */
  async talk(url: string, numClients: number, numTurns: number, at = (_turns: number) => {}) {
    let begun = 0
    const client = async () => {
      while (begun < numTurns) {
        at(++begun)
        await this.#turn(url)
      }
    }
    await Promise.all(Array.from({ length: numClients }, client))
  }

  async #turn(url: string): Promise<void> {
    const session = this.#draw()
    this.#busy.add(session)
    // Answers of 2 to 10 tokens.
    const max_tokens = 2 + Math.floor(this.#random() * 9)
    const body = { prompt: ' and then', session_id: `s${session}`, max_tokens, ...ENDLESS }
    const reply = await postJson(`${url}/v1/completions`, body)
    const answer = (await reply.json()) as { session?: { turn: number } }
    const last = this.#turns.get(session) ?? 0
    if (reply.status === 200) this.#heard(session, last, answer.session!.turn)
    else {
      this.failed.push(`${reply.status} ${JSON.stringify(answer)}`)
      this.#unsure.add(session)
    }
    this.#busy.delete(session)
  }

  #heard(session: number, last: number, turn: number): void {
    const isNext = turn === last + 1 || (this.#unsure.has(session) && turn === last + 2)
    if (!isNext) this.lost.push(`s${session}: turn ${turn} after ${last}`)
    this.#unsure.delete(session)
    this.#turns.set(session, turn)
  }

  #draw(): number {
    for (;;) {
      const at = this.#random() * this.#upTo.at(-1)!
      const session = this.#upTo.findIndex((upTo) => at <= upTo)
      if (!this.#busy.has(session)) return session
    }
  }
}

describe('R25: eight workers', () => {
  const flags = [
    ...['--replicas', String(NUM_WORKERS / NUM_GPUS), '--threads', '1', '--slots', '16'],
    ...['--durable', '--max-turns', '2', '--prefix-cache-mb', '8'],
  ]

  test.each([16, 64])(
    '%i users, Zipf sessions: a kill, an added worker, a restart',
    async (people) => {
      // A test that is repeated begins without sessions.
      const data = ['--data-dir', mkdtempSync(join(folder, 'data-'))]
      const crowd = new Crowd()
      const phases: Figures[] = []
      let server = await serve([...flags, ...data])
      onTestFinished(() => {
        server.process.kill('SIGKILL')
      })
      try {
        let before = await figuresOf(server)
        const phase = async (at?: (turns: number) => void) => {
          const looking = new InFlight(server)
          const began = performance.now()
          await crowd.talk(server.url, people, TURNS_OF_PHASE, at)
          const inFlight = await looking.end()
          const now = await figuresOf(server)
          const seconds = (performance.now() - began) / 1000
          phases.push({ ...difference(now, before), inFlight, seconds })
          // At once, or a run that does not end says nothing.
          process.stdout.write(`R25 with ${people}, phase ${phases.length}: ${seconds.toFixed(1)} s\n`)
          before = now
        }
        await phase()
        const victim = (await workersOf(server))[3]!
        await phase((turns) => {
          if (turns === 200) process.kill(victim.pid!, 'SIGKILL')
        })
        const isReady = async () => (await workersOf(server)).every(({ phase }) => phase === 'ready')
        await expect.poll(isReady, { timeout: 20_000 }).toBe(true)
        const { spec } = victim
        expect((await postJson(`${server.url}/api/workers/start`, spec)).status).toBe(200)
        await expect.poll(isReady, { timeout: 20_000 }).toBe(true)
        await phase()
        expect(await server.stop()).toBe(0)
        server = await serve([...flags, ...data])
        before = await figuresOf(server)
        await phase()
      } finally {
        await server.stop()
      }
      report(people, crowd, phases)
      expect(crowd.lost).toEqual([])
      // Requests that the killed worker was answering.
      expect(crowd.failed.length).toBeLessThanOrEqual(people / 2)
      for (const [i, { answers }] of phases.entries()) {
        // A worker that was dead for part of the phase has fewer.
        if (i !== 1) expect(unevenness(answers)).toBeLessThan(1.3)
      }
      const hits = sum(phases.map((phase) => phase.hits))
      const spills = sum(phases.map((phase) => phase.spills))
      expect(hits / (hits + spills)).toBeGreaterThan(0.9)
    },
    280_000,
  )
})

describe('R25: a state of 34 MB', () => {
  test('moves from one worker to another on this host', async () => {
    const model = join(folder, 'large-states.pth')
    // A state of the size of a 7.2B model's, and little else.
    const size = { layers: 512, channels: 256, heads: 4, headSize: 64, ffnSize: 64, vocabSize: 4096 }
    const ranks = { w: 32, a: 32, v: 32, g: 32 }
    writeRandomWeights(model, { ...size, ranks }, { seed: 1, dtype: 'bf16' })
    const vocab = DEMO.replace(/pth$/, 'vocab.txt')
    const flags = ['--replicas', String(2 / Math.min(2, NUM_GPUS)), '--threads', '1', '--slots', '4', '--vocab', vocab]
    const server = await serve([model, ...flags, '--data-dir', join(folder, 'data-large')])
    onTestFinished(() => {
      server.process.kill('SIGKILL')
    })
    try {
      const both = await workersOf(server)
      const turnMs = async (worker: number) => {
        // Its state is written after the turn; an earlier request for the session waits for that.
        await delay(500)
        const begun = performance.now()
        const body = { prompt: ' and', session_id: 'large', max_tokens: 1, ...ENDLESS }
        const at = `${server.url}/api/workers/${both[worker]!.worker_id}/proxy`
        const reply = await postJson(`${at}/v1/completions`, body)
        expect(reply.status).toBe(200)
        await reply.json()
        return performance.now() - begun
      }
      const times: Record<'stays' | 'moves', number[]> = { stays: [], moves: [] }
      for (let i = 0; i < 20; i++) {
        const moved = await turnMs(i % 2)
        const stayed = await turnMs(i % 2)
        // The first turn has no previous worker.
        if (i === 0) continue
        times.moves.push(moved)
        times.stays.push(stayed)
      }
      const { info } = (await workersOf(server))[0]!
      const [moves, stays] = [median(times.moves), median(times.stays)]
      process.stdout.write(
        `R25, a state of ${info?.state_bytes} bytes: a turn that moves ${moves.toFixed(1)} ms (${atMost(times.moves)} at most), one that stays ${stays.toFixed(1)} ms\n`,
      )
      expect(info?.state_bytes).toBeGreaterThan(34_000_000)
      expect(moves - stays).toBeLessThan(50)
    } finally {
      await server.stop()
    }
  }, 280_000)
})

const median = (values: readonly number[]) => values.toSorted((a, b) => a - b)[values.length >> 1] ?? 0
const atMost = (values: readonly number[]) => Math.max(...values).toFixed(1)

function report(people: number, { failed, lost, numSessions }: Crowd, phases: readonly Figures[]) {
  const share = ({ hits, spills }: Figures) => (hits / (hits + spills)).toFixed(3)
  const figures = {
    hits: phases.map(share),
    'in flight, max/min': phases.map(({ inFlight }) => unevenness(inFlight).toFixed(2)),
    'answers, max/min': phases.map(({ answers }) => unevenness(answers).toFixed(2)),
    answers: phases.map(({ answers }) => [...answers.values()].join(' ')),
    sessions: numSessions,
    failed: failed.length,
    lost: lost.length,
  }
  process.stdout.write(`R25 with ${people}: ${JSON.stringify(figures)}\n`)
}

function difference(now: Figures, before: Figures): Figures {
  const answers = [...now.answers].map(
    ([worker, count]) => [worker, count - (before.answers.get(worker) ?? 0)] as const,
  )
  return {
    hits: now.hits - before.hits,
    spills: now.spills - before.spills,
    answers: new Map(answers.filter(([worker]) => worker !== '')),
    inFlight: now.inFlight,
    seconds: now.seconds,
  }
}

const sum = (values: Iterable<number>) => [...values].reduce((total, value) => total + value, 0)

function unevenness(answers: ReadonlyMap<string, number>): number {
  const counts = [...answers.values()]
  return Math.max(...counts) / Math.min(...counts)
}
