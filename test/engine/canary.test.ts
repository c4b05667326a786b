/**
 * Canaries: simultaneous conversations of random length and fate, with a store and small tiers. A word of one in
 * another, a state that does not belong to its tokens, a lost or a doubled turn would each change an answer, because
 * the scripted model's next token depends on every token its slot has consumed.
 *
 * SKEIN_CANARIES sets the number of turns; 80 by default, 1 000 with SKEIN_SLOW=1; 10 000 takes a minute or two.
 * SKEIN_SEED selects the random choices, so that parallel processes try different ones.
 */
import { expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { joinTokens } from '../../src/state/snapshot.ts'
import { newFolder, openDirectStore } from '../helpers/direct-store.ts'
import { randomOf } from '../helpers/random.ts'
import { trials } from '../helpers/slow.ts'
import { Collected, LOOPS, promptOf, SAMPLING, soloAnswer } from './kit.ts'
import { call, IDENTITY, settle, setUp, toldOf, turnOf, withSteps } from './session-kit.ts'

/** States that are copied from their slots layer by layer. */
const LAYERS = 4

const NUM_TURNS = Number(process.env.SKEIN_CANARIES ?? trials(80, 1000))
const SEED = Number(process.env.SKEIN_SEED ?? 4)

/** A conversation as a client knows it. */
interface Talk {
  readonly tenant: string
  readonly id: string
  /** By turn; nothing for turn 0. */
  readonly turns: Map<number, Int32Array>
  head: number
}

interface Asked {
  readonly talk: Talk
  readonly request: GenerateRequest
  readonly history: Int32Array
}

const TITLE = `${NUM_TURNS} turns of canaries: joined, cancelled, evicted, forked, rewound, deleted, restarted`

test.each(LOOPS)(
  `${TITLE}; %s`,
  async (loop) => {
    const pick = randomOf(SEED)
    const folder = newFolder()
    const identity = { ...IDENTITY, layers: LAYERS }
    const start = () => {
      const store = openDirectStore(folder, identity, { maxInlineBytes: pick(2) * 1000 })
      const sizes = { slots: 3, memory: { count: 4, bytes: Number.POSITIVE_INFINITY } }
      const limits = { maxSessions: 1e6, maxBytes: 1e12, maxTurns: 1000, ttlMs: null }
      const states = { store, sizes, limits, prefixBytes: 8000 }
      return setUp({ fake: { numSlots: 5, maxTokens: 40, layers: LAYERS }, limits: { prefillChunk: 9 }, states, loop })
    }
    let { engine } = start()
    const talks: Talk[] = []
    const seen = { turns: 0, cancelled: 0, forks: 0, rewinds: 0, deletes: 0, restarts: 0 }
    let serial = 0

    const newTalk = (): Talk => {
      serial++
      const talk = { tenant: `t${pick(3)}`, id: `s${serial}`, turns: new Map(), head: 0 }
      talk.turns.set(0, new Int32Array(0))
      talks.push(talk)
      return talk
    }

    const ask = (talk: Talk): Asked => {
      serial++
      const canary = promptOf(1 + pick(60), serial)
      const from = pick(8) === 0 ? [...talk.turns.keys()][pick(talk.turns.size)] : undefined
      const request = turnOf(
        {
          id: `r${serial}`,
          tenant: talk.tenant,
          prompt: canary,
          maxTokens: pick(12),
          sampling: { ...SAMPLING, seed: BigInt(serial), presencePenalty: pick(2) },
          stop: { strings: [], tokens: pick(2) ? [20, 21, 22] : [], ignoreEos: true },
        },
        { id: talk.id, from },
      )
      engine.submit(request)
      return { talk, request, history: talk.turns.get(from ?? talk.head)! }
    }

    const check = ({ talk, request, history }: Asked, collected: Collected) => {
      const prompt = joinTokens(history, request.prompt)
      const answer = soloAnswer({ ...request, prompt })
      expect(collected.answer(request.id)).toEqual(answer)
      const { position } = toldOf(collected, request.id)
      expect(position?.turn).toBe(Math.max(...talk.turns.keys()) + 1)
      talk.turns.set(position!.turn, joinTokens(prompt, answer.tokens))
      talk.head = position!.turn
      seen.turns++
    }

    /** A cancel while the turn is being written comes too late: the turn is in the session, but was not reported. */
    const noteIfWritten = async ({ talk, request, history }: Asked) => {
      const { tenant, id } = talk
      const known = await call(engine, 'sessions.get', { tenant, id }).catch(() => null)
      if (known === null || talk.turns.has(known.head)) return
      const prompt = joinTokens(history, request.prompt)
      talk.turns.set(known.head, joinTokens(prompt, soloAnswer({ ...request, prompt }).tokens))
      talk.head = known.head
    }

    /** Several conversations at once, some of them cut off. */
    const round = async () => {
      const busy = new Set<Talk>()
      while (busy.size < 1 + pick(9)) busy.add(pick(3) ? (talks[pick(talks.length)] ?? newTalk()) : newTalk())
      const asked = [...busy].map(ask)
      const collected = new Collected()
      const doomed = asked.filter(() => pick(6) === 0)
      for (const { request } of doomed) {
        for (let i = pick(12); i > 0; i--) collected.add(engine.step())
        engine.cancel(request.id)
      }
      await settle(engine, collected)
      for (const one of asked) {
        const isOver = collected.of(one.request.id).some(({ type }) => type === 'finish')
        if (isOver) check(one, collected)
        else {
          expect(doomed).toContain(one)
          await noteIfWritten(one)
          seen.cancelled++
        }
      }
    }

    const meddle = async (what: number) => {
      const talk = talks[pick(talks.length)]!
      const { tenant, id } = talk
      if (talk.head === 0 || what > 3) return
      if (what === 0) {
        serial++
        const newId = `f${serial}`
        const path = await call(engine, 'sessions.fork', { tenant, id, newId })
        const turns = path.turns.map(({ turn }) => [turn, talk.turns.get(turn)!] as const)
        talks.push({ tenant, id: newId, head: talk.head, turns: new Map([[0, new Int32Array(0)], ...turns]) })
        seen.forks++
      } else if (what === 1) {
        const turn = [...talk.turns.keys()][pick(talk.turns.size)]!
        await call(engine, 'sessions.rewind', { tenant, id, turn })
        talk.head = turn
        seen.rewinds++
      } else if (what === 2) {
        await call(engine, 'sessions.delete', { tenant, id })
        talks.splice(talks.indexOf(talk), 1)
        seen.deletes++
      } else {
        await withSteps(engine, engine.close())
        engine = start().engine
        seen.restarts++
      }
    }

    while (seen.turns < NUM_TURNS) {
      await round()
      await meddle(pick(6))
    }
    expect(engine.failure).toBeNull()
    expect(engine.stats).toMatchObject({ failed: 0, running: 0, waiting: 0, freeSlots: 5 })
    const count = (tenant: string) => talks.filter((talk) => talk.tenant === tenant && talk.head > 0).length
    for (const tenant of ['t0', 't1', 't2']) {
      const list = await call(engine, 'sessions.list', { tenant })
      expect(list.filter(({ head }) => head > 0)).toHaveLength(count(tenant))
    }
    for (const number of Object.values(seen)) expect(number).toBeGreaterThan(NUM_TURNS / 100)
    await engine.close()
  },
  600_000,
)
