/**
 * A state is sent to the store's thread in parts; leftovers of a commit that failed in between are in no other state. And the
 * thread outlives whatever fails in it.
 */
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { ModelIdentity } from '../../src/state/snapshot.ts'
import { openDatabase } from '../../src/state/store/sqlite.ts'
import { newFolder } from '../helpers/direct-store.ts'

/** The thread needs built code. */
const BUILT = join(import.meta.dirname, '../../dist/state/store/store-thread.js')

/** All parts of a state but the first have one size, so that one could be mistaken for another. */
const IDENTITY: ModelIdentity = {
  architecture: 'rwkv7',
  layers: 31,
  channels: 4096,
  heads: 64,
  headSize: 64,
  vocabulary: 'v',
  weights: 'w',
}

const floatsOf = (value: number) => [
  new Float32Array(31 * 2 * 4096).fill(value),
  new Float32Array(31 * 64 * 64 * 64).fill(value),
]

/** A session `id` with one turn, whose state is made of these numbers. */
function changeOf(id: string, floats: readonly Float32Array[]) {
  const key = `key ${id}`
  const state = { key, tokens: Int32Array.of(1), tail: new Int32Array(0) }
  const turn = { turn: 1, parent: 0, createdAt: 1, key, numTokens: 1, bytes: 1, isForeign: false }
  const times = { createdAt: 1, updatedAt: 1, ttlMs: null }
  const record = { version: 1, head: 1, nextTurn: 2, turns: [turn], ...times }
  return {
    puts: [{ ...state, floats, namespace: 'n', isForeign: false }],
    sessions: [{ namespace: 'n', id, record }],
    deleteKeys: [],
  }
}

test('a commit that runs out of memory between two parts does not affect the next', async () => {
  // The built module of that source.
  const { openStore } = (await import(BUILT)) as typeof import('../../src/state/store/store-thread.ts')
  const store = await openStore({ dataFolder: newFolder(), identity: IDENTITY, isDurable: false })
  const [shift, wkv] = floatsOf(1)
  let numParts = 0
  const subarray = wkv!.subarray.bind(wkv)
  wkv!.subarray = (...range) => {
    numParts++
    if (numParts === 2) throw new RangeError('Array buffer allocation failed')
    return subarray(...range)
  }
  await expect(store.commit(changeOf('a', [shift!, wkv!]))).rejects.toThrow('allocation failed')
  await store.commit(changeOf('b', floatsOf(2)))
  const { state } = await store.load('key b', 'n')
  expect(state.map((array) => new Set(array))).toEqual([new Set([2]), new Set([2])])
  await store.close()
})

test('parts are sent in reused memory, and none has the numbers of another', async () => {
  const { openStore } = (await import(BUILT)) as typeof import('../../src/state/store/store-thread.ts')
  const store = await openStore({ dataFolder: newFolder(), identity: IDENTITY, isDurable: false })
  const ids = ['a', 'b', 'c']
  for (const [i, id] of ids.entries()) await store.commit(changeOf(id, floatsOf(i + 1)))
  for (const [i, id] of ids.entries()) {
    const { state } = await store.load(`key ${id}`, 'n')
    expect(state.map((array) => [array.length, ...new Set(array)])).toEqual([
      [31 * 2 * 4096, i + 1],
      [31 * 64 * 64 * 64, i + 1],
    ])
  }
  await store.close()
})

test('a claim that fails on a full disk, where nothing can be read either, is refused, and later ones are answered', async () => {
  const { openStore } = (await import(BUILT)) as typeof import('../../src/state/store/store-thread.ts')
  const dataFolder = newFolder()
  // The threads take the option of tests.
  const options = { dataFolder, identity: IDENTITY, isDurable: false, maxPages: 30 }
  const store = await openStore(options)
  const nameOf = (id: string) => ({ namespace: 'n', id })
  let numClaims = 0
  while ((await store.claim(nameOf(`${numClaims}`), true)).isUnclaimed !== true) numClaims++
  expect(numClaims).toBeGreaterThan(10)
  const model = readdirSync(dataFolder, { withFileTypes: true }).find((entry) => entry.isDirectory())!.name
  const other = openDatabase(join(dataFolder, model, 'sessions.db'), { timeout: 5000 })
  other.exec('ALTER TABLE uses RENAME TO away')
  // The new name may have brought a free page: the first of these still fit.
  const long = (i: number) => nameOf(`${i}`.repeat(500))
  for (let i = 0; i < 40; i++) await expect(store.claim(long(i), true)).rejects.toThrow('no such table')
  other.exec('ALTER TABLE away RENAME TO uses')
  other.close()
  expect(await store.claim(long(40), true)).toMatchObject({ session: null })
  await store.close()
})
