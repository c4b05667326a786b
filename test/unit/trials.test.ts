/** Whose grammar is compiled next, and what slow, broken and cancelled ones cost others. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { type ThreadEvents, Trials } from '../../src/grammar/trials.ts'

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] }))
afterEach(() => void vi.useRealTimers())

/** Trials whose threads compile when they are told to. */
function manual() {
  const threads: { readonly events: ThreadEvents; posted: string[]; hasEnded: boolean }[] = []
  const trials = new Trials((events) => {
    const thread = { events, posted: [] as string[], hasEnded: false }
    threads.push(thread)
    const end = () => {
      thread.hasEnded = true
    }
    return { post: (message) => void (message.type === 'compile' && thread.posted.push(message.key)), end }
  })
  const outcomes: string[] = []
  const ask = (key: string, tenant: string, isWanted = () => true) =>
    trials.compile(key, { type: 'text', text: key }, { tenant, isWanted }).then(
      () => outcomes.push(key),
      (error) => outcomes.push(`${key}: ${error.message}`),
    )
  const finish = async (thread = 0, ms = 10) => {
    threads[thread]!.events.compiled({ ms, isBloated: false, error: null })
    await Promise.resolve()
    await Promise.resolve()
  }
  return { trials, threads, outcomes, ask, finish }
}

test('a tenant with many grammars delays its own; the next is of whose took least', async () => {
  const { threads, outcomes, ask, finish } = manual()
  for (const key of ['a1', 'a2', 'a3']) void ask(key, 'alice')
  void ask('b1', 'bob')
  void ask('b2', 'bob')
  for (let i = 0; i < 5; i++) await finish(0, threads[0]!.posted.at(-1)!.startsWith('a') ? 100 : 30)
  expect(outcomes).toEqual(['a1', 'b1', 'b2', 'a2', 'a3'])
  expect(threads.length).toBe(1)
})

test('behind a slow grammar another tenant gets a second thread, which ends when none waits', async () => {
  const { threads, outcomes, ask, finish } = manual()
  void ask('a1', 'alice')
  void ask('a2', 'alice')
  vi.advanceTimersByTime(1000)
  void ask('b1', 'bob')
  expect(threads.map(({ posted }) => posted)).toEqual([['a1'], ['b1']])
  await finish(1)
  expect(outcomes).toEqual(['b1'])
  expect(threads.map(({ posted }) => posted)).toEqual([['a1'], ['b1']])
  await finish(0)
  await finish(0)
  expect(outcomes).toEqual(['b1', 'a1', 'a2'])
  expect(threads.map(({ hasEnded }) => hasEnded)).toEqual([false, true])
})

test('a tenant that waits when another’s slow grammar begins gets the second thread, too', async () => {
  const { threads, ask, finish } = manual()
  void ask('a1', 'alice')
  void ask('a2', 'alice')
  void ask('b1', 'bob')
  await finish(0, 100)
  expect(threads.map(({ posted }) => posted)).toEqual([['a1', 'b1']])
  vi.advanceTimersByTime(1000)
  expect(threads.map(({ posted }) => posted)).toEqual([['a1', 'b1'], ['a2']])
})

test('a thread has 5 s from when it has started, and the next grammar begins in a new one', async () => {
  const { threads, outcomes, ask, finish } = manual()
  const slow = ask('slow', 'alice')
  void ask('next', 'alice')
  vi.advanceTimersByTime(6000)
  expect(threads[0]!.hasEnded).toBe(false)
  threads[0]!.events.ready()
  vi.advanceTimersByTime(5000)
  await slow
  expect(outcomes).toEqual(['slow: the grammar of the answer takes more than 5 s to compile; make it simpler'])
  expect(threads.map(({ posted, hasEnded }) => [posted, hasEnded])).toEqual([
    [['slow'], true],
    [['next'], false],
  ])
  await finish(1)
  expect(outcomes.at(-1)).toBe('next')
})

test('a cancelled request’s grammar is not compiled, unless another request waits for it', async () => {
  const { threads, outcomes, ask, finish } = manual()
  void ask('first', 'alice')
  let isLive = true
  void ask('gone', 'alice', () => isLive)
  void ask('shared', 'alice', () => isLive)
  void ask('shared', 'bob')
  isLive = false
  await finish()
  await finish()
  expect(threads[0]!.posted).toEqual(['first', 'shared'])
  expect(outcomes).toEqual(['first', 'shared', 'shared'])
})

test('when a thread ends, its grammar is refused and those that wait are compiled', async () => {
  const { trials, threads, outcomes, ask } = manual()
  const lost = ask('lost', 'alice')
  const last = ask('last', 'alice')
  threads[0]!.events.ended('out of memory')
  await lost
  expect(threads[1]!.posted).toEqual(['last'])
  trials.dispose()
  await last
  expect(outcomes).toEqual([
    'lost: the grammar of the answer cannot be used: out of memory',
    'last: the grammar of the answer cannot be used: the engine was closed',
  ])
})
