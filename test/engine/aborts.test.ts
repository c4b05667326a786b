/**
 * Requests that are cancelled at any moment and repeated at once: in the queue, while their state is written to a slot,
 * between chunks of the prompt, while waiting for a copy, between draws, while the turn is written. The second try
 * gives what it would have given without the first, no slot is lost, and no session stays busy.
 *
 * SKEIN_ABORTS sets the number of rounds; 200 by default, 1 500 with SKEIN_SLOW=1; 33 400 is 100 000 over the three
 * loops. SKEIN_SEED selects the random choices.
 */
import { expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { joinTokens } from '../../src/state/snapshot.ts'
import { newFolder, openDirectStore } from '../helpers/direct-store.ts'
import { randomOf } from '../helpers/random.ts'
import { trials } from '../helpers/slow.ts'
import { Collected, LOOPS, promptOf, requestOf, SAMPLING, soloAnswer } from './kit.ts'
import { call, IDENTITY, settle, setUp, toldOf, turnOf } from './session-kit.ts'

const NUM_ROUNDS = Number(process.env.SKEIN_ABORTS ?? trials(200, 1500))
const SEED = Number(process.env.SKEIN_SEED ?? 11)
const LAYERS = 3
const NUM_SLOTS = 4
const NUM_SESSIONS = 6

test.each(LOOPS)(
  `${NUM_ROUNDS} aborts, each followed by the same request; %s`,
  async (loop) => {
    const pick = randomOf(SEED)
    const store = openDirectStore(newFolder(), { ...IDENTITY, layers: LAYERS })
    const { engine, runner } = setUp({
      fake: { numSlots: NUM_SLOTS, maxTokens: 24, layers: LAYERS },
      limits: { prefillChunk: 8 },
      states: {
        store,
        sizes: { slots: 1, memory: { count: 2, bytes: Number.POSITIVE_INFINITY } },
        limits: { maxSessions: 1e6, maxBytes: 1e12, maxTurns: 4, ttlMs: null },
        prefixBytes: 6000,
      },
      loop,
    })
    /** The conversations, as their client knows them. */
    const histories = new Map<string, Int32Array>()
    const seen = { waiting: 0, filling: 0, reading: 0, answering: 0, writing: 0, kept: 0 }
    let serial = 0

    const ask = (): GenerateRequest => {
      serial++
      const parts = {
        id: `r${serial}`,
        // Few different beginnings, so that prefixes are found.
        prompt: joinTokens(promptOf(32 + pick(12), pick(4)), promptOf(pick(6), serial)),
        maxTokens: 1 + pick(10),
        sampling: { ...SAMPLING, seed: BigInt(serial) },
        stop: { strings: pick(2) ? ['never so'] : [], tokens: [], ignoreEos: true },
      }
      if (pick(2)) return requestOf(parts)
      return turnOf({ ...parts, prompt: promptOf(1 + pick(20), serial) }, { id: `s${pick(NUM_SESSIONS)}` })
    }

    const note = (request: GenerateRequest, collected: Collected, hasWritten: boolean) => {
      const { waiting } = engine.stats
      const events = collected.of(request.id)
      if (events.some(({ type }) => type === 'text')) seen.answering++
      else if (waiting > 0) seen.waiting++
      else if (hasWritten) seen.filling++
      else seen.reading++
      if ((engine.stats.states?.unsaved ?? 0) > 0) seen.writing++
    }

    const check = (request: GenerateRequest, collected: Collected) => {
      const id = request.session?.id
      const history = (id === undefined ? null : histories.get(id)) ?? new Int32Array(0)
      const prompt = joinTokens(history, request.prompt)
      const answer = soloAnswer({ ...request, prompt })
      expect(collected.answer(request.id)).toEqual(answer)
      if (id === undefined) return
      expect(toldOf(collected, request.id).position).toBeDefined()
      histories.set(id, joinTokens(prompt, answer.tokens))
      seen.kept++
    }

    for (let round = 0; round < NUM_ROUNDS; round++) {
      const collected = new Collected()
      // Other requests, sometimes so many that it waits in the queue.
      const others = Array.from({ length: pick(7) }, () => {
        serial++
        return requestOf({ id: `o${serial}`, prompt: promptOf(1 + pick(30), serial), maxTokens: 1 + pick(12) })
      })
      for (const other of others) engine.submit(other)
      const request = ask()
      engine.submit(request)
      const { writes } = runner.calls
      // Some run to their end while the disk is blocked, so that they are cancelled during the write on any disk.
      const isWhole = pick(8) === 0
      const events = () => collected.of(request.id)
      // Half of them after a few steps: while a state comes to its slot, which takes no longer.
      const numSteps = pick(2) ? 1 + pick(3) : pick(16)
      for (let i = isWhole ? 100 : numSteps; i > 0; i--) {
        collected.add(engine.step())
        store.isHeld = isWhole && events().some(({ type }) => type === 'text')
        if (isWhole && events().some(({ type }) => type === 'finish')) break
        if (pick(4) === 0) await new Promise((resolve) => setImmediate(resolve))
      }
      note(request, collected, runner.calls.writes > writes)
      const wasOver = collected.of(request.id).some(({ type }) => type === 'finish')
      engine.cancel(request.id)
      store.isHeld = false
      // With the same id: no event of the first try may arrive under it. A turn that was reported has happened.
      const again = new Collected()
      if (wasOver) check(request, collected)
      else {
        engine.submit(request)
        await settle(engine, again)
        const wasKept = request.session && toldOf(again, request.id).position === undefined
        expect(wasKept).not.toBe(true)
        check(request, again)
      }
      await settle(engine, again)
      const all = new Collected()
      all.add([...collected.events, ...again.events])
      for (const other of others) expect(all.answer(other.id)).toEqual(soloAnswer(other))
      expect(engine.stats).toMatchObject({ running: 0, waiting: 0, freeSlots: NUM_SLOTS })
    }
    const list = await call(engine, 'sessions.list', { tenant: '' })
    expect(list.every(({ isBusy }) => !isBusy)).toBe(true)
    expect(list).toHaveLength(histories.size)
    expect(engine.failure).toBeNull()
    for (const [when, count] of Object.entries(seen)) {
      expect([when, count > 0]).toEqual([when, true])
    }
    await engine.close()
  },
  3_600_000,
)
