/** Which threads follow the answers with grammars, and what happens when a thread ends. */
import { expect, test, vi } from 'vitest'
import { MatcherRows, type ToRows } from '../../src/grammar/matcher-rows.ts'
import { Matchers, type StartThread } from '../../src/grammar/matchers.ts'
import { SharedMasks } from '../../src/grammar/shared-masks.ts'
import { tokenTable } from '../../src/grammar/vocabulary.ts'
import { openXgrammar } from '../../src/grammar/xgrammar.ts'

const VOCAB = 64
const GRAMMAR = { key: 'k', constraint: { type: 'text', text: 'a' }, isSlow: false } as const

interface Started {
  readonly masks: SharedMasks
  readonly thread: number
  readonly posted: ToRows[]
  readonly end: (reason: string) => void
  hasEnded: boolean
}

/** Matchers whose threads only record messages. */
function listening(numThreads: number, isWell = () => true) {
  const started: Started[] = []
  const start: StartThread = ({ thread, memory, numRows }, { ready, ended }) => {
    const masks = new SharedMasks(numRows, VOCAB / 32, memory)
    if (isWell()) ready()
    const one: Started = { masks, thread, posted: [], end: ended, hasEnded: false }
    started.push(one)
    const end = () => {
      one.hasEnded = true
    }
    return { post: (message) => one.posted.push(message), end }
  }
  const tokens = () => tokenTable(() => Uint8Array.of(97), VOCAB)
  const matchers = new Matchers({ tokens, vocabSize: VOCAB, numRows: 200, numThreads, start })
  return { started, matchers }
}

const rowsOf = ({ posted }: Started) => posted.flatMap((message) => (message.type === 'open' ? [message.row] : []))

test('few answers use one thread, more use several', () => {
  const { started, matchers } = listening(3)
  const open = () => matchers.open(GRAMMAR, false)
  const few = Array.from({ length: 32 }, open)
  expect(started.map(({ thread }) => thread)).toEqual([0])
  const more = Array.from({ length: 80 }, open)
  expect(started.map(({ thread }) => thread)).toEqual([0, 1, 2])
  expect(started.map((one) => rowsOf(one).length)).toEqual([32 + 16, 32, 32])
  for (const matcher of [...few, ...more]) matchers.advance(matcher, 5)
  matchers.flush()
  for (const one of started) {
    const [last] = one.posted.slice(-1)
    if (last?.type !== 'advance') throw new Error('it was not told of its draws')
    expect(last.steps.map(({ row }) => row)).toEqual(rowsOf(one))
  }
  matchers.close(more[0]!)
  expect(started[1]!.posted.at(-1)).toEqual({ type: 'close', row: more[0]!.row })
  matchers.dispose()
  expect(started.every(({ hasEnded }) => hasEnded)).toBe(true)
})

test('a thread that ends is restarted with its answers and their progress; other threads continue', () => {
  const { started, matchers } = listening(2)
  const all = Array.from({ length: 40 }, () => matchers.open(GRAMMAR, false))
  for (const matcher of all) matchers.advance(matcher, 7)
  started[1]!.end('out of memory')
  expect(started.map(({ thread }) => thread)).toEqual([0, 1, 1])
  const [again] = started.slice(-1)
  expect(rowsOf(again!)).toEqual(rowsOf(started[1]!))
  for (const message of again!.posted) expect(message).toMatchObject({ type: 'open', tokens: [7] })
  // Messages from the start are not sent twice.
  matchers.flush()
  expect(again!.posted.every(({ type }) => type === 'open')).toBe(true)
  expect(started[0]!.posted.at(-1)).toMatchObject({ type: 'advance' })
  matchers.dispose()
})

test('a thread that ends at its start is not started again before the next answer', () => {
  let isWell = false
  const { started, matchers } = listening(1, () => isWell)
  const matcher = matchers.open(GRAMMAR, false)
  started[0]!.end('no memory')
  expect([started.length, matcher.hasFailed]).toEqual([1, true])
  matchers.close(matcher)
  isWell = true
  const next = matchers.open(GRAMMAR, false)
  expect([started.length, next.hasFailed, rowsOf(started[1]!)]).toEqual([2, false, [next.row]])
  matchers.dispose()
})

test('with few processors one thread has all answers', () => {
  const { started, matchers } = listening(0)
  for (let i = 0; i < 100; i++) matchers.open(GRAMMAR, false)
  expect(started.length).toBe(1)
  matchers.dispose()
})

test('grammars that are slow to compile share a thread of their own', () => {
  const { started, matchers } = listening(2)
  const slow = Array.from({ length: 2 }, () => matchers.open({ ...GRAMMAR, isSlow: true }, false))
  const quick = matchers.open(GRAMMAR, false)
  expect(started.map((one) => [one.thread, rowsOf(one)])).toEqual([
    [2, slow.map(({ row }) => row)],
    [0, [quick.row]],
  ])
  matchers.advance(slow[1]!, 5)
  matchers.flush()
  expect(started[0]!.posted.at(-1)).toMatchObject({ type: 'advance' })
  expect(started[1]!.posted.length).toBe(1)
  matchers.dispose()
})

test('with many processors slow grammars have two threads', () => {
  const { started, matchers } = listening(8)
  const rows = Array.from({ length: 4 }, () => matchers.open({ ...GRAMMAR, isSlow: true }, false).row)
  expect(started.map((one) => [one.thread, rowsOf(one)])).toEqual([
    [4, [rows[0], rows[2]]],
    [5, [rows[1], rows[3]]],
  ])
  matchers.dispose()
})

test('an answer whose turn took long goes on in the thread of slow ones, from where it is', () => {
  const { started, matchers } = listening(1)
  const [quick, slow] = [matchers.open(GRAMMAR, false), matchers.open(GRAMMAR, false)]
  const { masks } = started[0]!
  for (const [matcher, ms] of [
    [quick, 1],
    [slow, 200],
  ] as const) {
    masks.write(matcher.row, matcher.turn, 'open', [], 0)
    matchers.advance(matcher, 5)
    masks.write(matcher.row, matcher.turn, 'open', [], ms)
    matchers.advance(matcher, 6)
  }
  matchers.flush()
  expect(started[0]!.posted.filter(({ type }) => type === 'close')).toEqual([{ type: 'close', row: 1 }])
  const steps = started[0]!.posted.flatMap((message) => (message.type === 'advance' ? message.steps : []))
  expect(steps.map(({ row, token }) => [row, token])).toEqual([
    [quick.row, 5],
    [quick.row, 6],
  ])
  expect(started[1]!.posted).toMatchObject([{ type: 'open', row: slow.row, turn: slow.turn, tokens: [5, 6] }])
  matchers.dispose()
})

/** What a thread writes when it has opened the answer that it was told of last. */
function write({ posted, masks }: Started, word: number): void {
  const last = posted.at(-1)
  if (last?.type !== 'open') throw new Error('it was not opened')
  masks.maskOf(last.row).fill(word)
  masks.write(last.row, last.turn, 'open', [], 0)
}

test('a cancelled answer of a slow grammar, still worked on, writes over no other answer', () => {
  const { started, matchers } = listening(1)
  matchers.close(matchers.open(GRAMMAR, false))
  const slow = matchers.open({ ...GRAMMAR, isSlow: true }, false)
  const [quickThread, slowThread] = [started[0]!, { ...started[1]!, posted: [...started[1]!.posted] }]
  matchers.close(slow)
  const quick = matchers.open(GRAMMAR, false)
  write(quickThread, 7)
  expect(quick.isReady).toBe(true)
  write(slowThread, 9)
  expect(quick.isReady).toBe(true)
  expect([...quick.mask]).toEqual([7, 7])
  matchers.dispose()
})

test('of a thread that hangs with a cancelled answer no other answer fails', () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] })
  try {
    const { started, matchers } = listening(1)
    const hanging = matchers.open(GRAMMAR, false)
    const [first] = started[0]!.posted
    if (first?.type !== 'open') throw new Error('it was not opened')
    started[0]!.masks.setBusyTurn(0, first.turn)
    matchers.close(hanging)
    const next = matchers.open(GRAMMAR, false)
    expect(next.row).toBe(hanging.row)
    vi.advanceTimersByTime(13_000)
    expect(started.map(({ hasEnded }) => hasEnded)).toEqual([true, false])
    expect(next.hasFailed).toBe(false)
    expect(rowsOf(started[1]!)).toEqual([next.row])
    matchers.dispose()
  } finally {
    vi.useRealTimers()
  }
})

test('an answer whose turn ends its thread fails; the others of the thread go on', () => {
  const { started, matchers } = listening(1)
  const [fatal, other] = [matchers.open(GRAMMAR, false), matchers.open(GRAMMAR, false)]
  started[0]!.masks.setBusyTurn(0, fatal.turn)
  started[0]!.end('unreachable')
  expect([fatal.hasFailed, other.hasFailed]).toEqual([true, false])
  expect(rowsOf(started[1]!)).toEqual([other.row])
  matchers.dispose()
})

test('a trap of the grammar engine fails its answer and ends the thread, a token that is not allowed only fails', async () => {
  const real = await openXgrammar()
  let hasTrapped = false
  const refusing = { AcceptToken: () => false, delete() {}, IsTerminated: () => true }
  const binding = Object.create(real, {
    GrammarMatcher: {
      value: function Trapping() {
        if (!hasTrapped) return refusing
        throw new WebAssembly.RuntimeError('unreachable')
      },
    },
  })
  const tokens = tokenTable(() => Uint8Array.of(97), VOCAB)
  const masks = new SharedMasks(2, VOCAB / 32)
  const { memory } = masks
  const rows = new MatcherRows(binding, { tokens, vocabSize: VOCAB, numRows: 2, memory, thread: 0 }, () => {})
  const open = { type: 'open', forces: false, mayForce: false, key: 'k', constraint: GRAMMAR.constraint } as const
  rows.handle({ ...open, row: 0, turn: 1, tokens: [5] })
  expect([masks.statusOf(0), masks.turnOf(0), masks.busyTurnOf(0)]).toEqual(['failed', 1, 0])
  hasTrapped = true
  expect(() => rows.handle({ ...open, row: 1, turn: 2, tokens: [] })).toThrow('unreachable')
  expect([masks.statusOf(1), masks.turnOf(1)]).toEqual(['failed', 2])
})

test('what a thread that ended had written of an answer counts no more', () => {
  const { started, matchers } = listening(1)
  const matcher = matchers.open(GRAMMAR, true)
  started[0]!.masks.write(matcher.row, matcher.turn, 'open', [5, 6], 0)
  expect(matcher.isReady).toBe(true)
  started[0]!.end('unreachable')
  // Its mask would be that after the tokens 5 and 6, and soon the one before.
  expect(matcher.isReady).toBe(false)
  write(started[1]!, 7)
  expect([matcher.isReady, matcher.takeForced(), [...matcher.mask]]).toEqual([true, [], [7, 7]])
  matchers.dispose()
})

test('an answer that goes on in another thread has the same certain tokens there', async () => {
  const binding = await openXgrammar()
  const tokens = tokenTable((token) => Uint8Array.of(token), VOCAB * 2)
  const constraint = { type: 'text', text: 'abcd' } as const
  const options = { tokens, vocabSize: VOCAB * 2, numRows: 400 }
  const masksOf: SharedMasks[] = []
  const start: StartThread = ({ memory, thread }, { ready, ended }) => {
    ready()
    const rows = new MatcherRows(binding, { ...options, memory, thread }, () => {})
    masksOf.push(new SharedMasks(options.numRows, (VOCAB * 2) / 32, memory))
    end = ended
    return { post: (message) => rows.handle(message), end: () => {} }
  }
  let end: (reason: string) => void = () => {}
  const told = ['stays', 'is slow', 'loses its thread', 'loses it afterwards'].map((fate) => {
    const matchers = new Matchers({ ...options, tokens: () => tokens, numRows: 200, numThreads: 1, start })
    const matcher = matchers.open({ key: 'k', constraint, isSlow: false }, true)
    const taken = [matcher.takeForced()]
    if (fate === 'is slow') masksOf.at(-1)!.write(matcher.row, matcher.turn, 'open', [], 200)
    matchers.advance(matcher, 97)
    matchers.flush()
    if (fate === 'loses its thread') end('unreachable')
    taken.push(matcher.takeForced())
    if (fate === 'loses it afterwards') end('unreachable')
    const mask = [...matcher.mask]
    matchers.dispose()
    return [...taken, mask]
  })
  expect(told[0]!.slice(0, 2)).toEqual([[], [98, 99, 100, 0]])
  expect(told).toEqual(told.map(() => told[0]))
})
