/** The rules of every store of files and batches: that of a folder, and that of a cluster with a real PostgreSQL. */
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import { ClusterBatchStore } from '../../src/batches/cluster-store.ts'
import { FolderBatchStore } from '../../src/batches/folder-store.ts'
import { advance, type BatchRow, type BatchStore, type FileRow, note } from '../../src/batches/store.ts'
import { Database } from '../../src/cluster/database.ts'
import { FolderBlobs } from '../../src/state/shared/open-blobs.ts'
import { sweep } from '../../src/state/shared/shared-store.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const fileOf = (id: string, bytes: number, tenant = 'a'): FileRow => {
  return { id, tenant, filename: `${id} \0`, purpose: 'batch', bytes, created: 1000, expires: null }
}
const batchOf = (id: string, tenant = 'a'): BatchRow => {
  const data = {
    ...{ endpoint: '/v1/completions', inputFile: 'in', window: '1h', expires: 4600, total: 0 },
    ...{ metadata: { nul: '\0', half: '\ud800' }, outputSeconds: null, outputFile: null },
    ...{ errorFile: null, errors: [], times: {}, counts: null },
  }
  return { id, tenant, status: 'validating', created: 1000, data }
}
const resultOf = (line: number, text: string, isFailed = false) => ({ line, isFailed, text })

/** Stores of several servers over the same folder or cluster. */
type Open = (count: number) => Promise<BatchStore[]>

const ofFolder: Open = async (count) => {
  const folder = temporaryFolder()
  return Array.from({ length: count }, () => {
    const store = new FolderBatchStore(folder)
    onTestFinished(() => store.close())
    return store
  })
}

let postgres: Postgres
beforeAll(async () => {
  if (NO_POSTGRES === null) postgres = await startPostgres()
})
afterAll(() => postgres?.remove())

async function openCluster() {
  const database = await Database.open(postgres.newDatabase())
  onTestFinished(() => database.close())
  const blobs = new FolderBlobs(temporaryFolder())
  return { database, blobs, store: new ClusterBatchStore(database, blobs) }
}
const ofCluster: Open = async (count) => {
  const { database, blobs } = await openCluster()
  return Array.from({ length: count }, () => new ClusterBatchStore(database, blobs))
}
const blobsIn = async (blobs: FolderBlobs) => {
  const names: string[] = []
  for await (const { name } of blobs.list()) names.push(name)
  return names
}

const STORES = [
  { name: 'a folder', open: ofFolder, isLeftOut: false },
  { name: 'a cluster', open: ofCluster, isLeftOut: NO_POSTGRES !== null },
]

describe.each(STORES)('files and batches of $name', ({ open, isLeftOut }) => {
  describe.skipIf(isLeftOut)('', () => {
    test('are visible to their tenant only, and can be read from any position', async () => {
      const [store, other] = (await open(2)) as [BatchStore, BatchStore]
      const content = Uint8Array.from({ length: 20_000_000 }, (_, i) => i % 251)
      const row = fileOf('one', content.length)
      expect(await store.addFile(row, content, content.length)).toBe(true)
      expect(await other.file('b', 'one')).toBeNull()
      expect(await other.files('a', 'batch_output')).toEqual([])
      expect((await other.files('a', 'batch')).map(({ id }) => id)).toEqual(['one'])
      expect(Buffer.compare(await other.read(row), content)).toBe(0)
      const file = (await other.openFile('one'))!
      for (const [at, length] of [
        [0, 10],
        [8 * 2 ** 20 - 5, 10],
        [100, 17_000_000],
        [content.length - 3, 3],
      ] as const) {
        const into = new Uint8Array(length)
        expect(await file.read(into, at)).toBe(length)
        expect(Buffer.compare(into, content.subarray(at, at + length))).toBe(0)
      }
      expect(await file.read(new Uint8Array(10), content.length)).toBe(0)
      expect(await file.read(new Uint8Array(10), content.length - 4)).toBe(4)
      await file.close()
      await store.removeFile(row)
      expect(await other.file('a', 'one')).toBeNull()
      expect(await other.openFile('one')).toBeNull()
    })

    test('have limits per tenant, also when all come at once', async () => {
      const stores = await open(4)
      const kept = await Promise.all(
        stores.map((store, i) => store.addFile(fileOf(`f${i}`, 40), new Uint8Array(40), 100)),
      )
      expect(kept.filter((isKept) => isKept)).toHaveLength(2)
      expect(await stores[0]!.addFile(fileOf('b', 40, 'b'), new Uint8Array(40), 100)).toBe(true)
      const begun = await Promise.all(stores.map((store, i) => store.addBatch(batchOf(`b${i}`), 3)))
      expect(begun.filter((isBegun) => isBegun)).toHaveLength(3)
      expect(await stores[0]!.batches('a')).toHaveLength(3)
      const batch = (await stores[0]!.batches('a'))[0]!
      expect(batch).toEqual(batchOf(batch.id))
    })

    test('a batch runs on one server, which has one per tenant, until it releases it or its lease ends', async () => {
      const [one, two] = (await open(2)) as [BatchStore, BatchStore]
      const [first, second, third] = [batchOf('1'), batchOf('2'), batchOf('3', 'b')]
      for (const batch of [first, second, third]) await one.addBatch(batch, 3)
      const claims = await Promise.all([one.claim(first, 'one'), two.claim(second, 'two')])
      expect(claims.filter((isClaimed) => isClaimed)).toHaveLength(1)
      await one.release('one')
      await two.release('two')
      expect(await one.claim(first, 'one')).toBe(true)
      expect(await one.claim(first, 'one')).toBe(true)
      expect(await two.claim(first, 'two')).toBe(false)
      expect(await two.claim(second, 'two')).toBe(false)
      expect(await two.claim(third, 'two')).toBe(true)
      expect((await two.unfinished('two')).map(({ id }) => id)).toEqual(['2', '3'])
      await one.release('one')
      expect(await two.claim(first, 'two')).toBe(true)
    })

    test('a status changes only from the named ones, and known figures are never lost', async () => {
      const [store] = (await open(1)) as [BatchStore]
      await store.addBatch(batchOf('1'), 3)
      const cancel = { from: ['in_progress'], status: 'cancelling', change: {}, now: 5 } as const
      expect(await advance(store, '1', cancel)).toBe(false)
      const run = { from: ['validating'], status: 'in_progress', change: { total: 7 }, now: 4 } as const
      expect(await advance(store, '1', run)).toBe(true)
      expect(await advance(store, '1', cancel)).toBe(true)
      await note(store, '1', { outputFile: 'x' })
      const { status, data } = (await store.batch('a', '1'))!
      expect({ status, ...data }).toMatchObject({
        ...{ status: 'cancelling', total: 7, outputFile: 'x' },
        times: { in_progress: 4, cancelling: 5 },
      })
      expect(await store.batch('b', '1')).toBeNull()
    })

    test('every line has one result, the first, and only from the owner of the batch', async () => {
      const [one, two] = (await open(2)) as [BatchStore, BatchStore]
      const batch = batchOf('1')
      await one.addBatch(batch, 3)
      expect(await one.addResults('1', 'one', [resultOf(0, 'nobody')])).toBe(false)
      await one.claim(batch, 'one')
      // Out of order, and more than are read at once.
      for (let line = 119; line >= 0; line--)
        expect(await one.addResults('1', 'one', [resultOf(line, `${line}`, line % 40 === 3)])).toBe(true)
      await one.release('one')
      await two.claim(batch, 'two')
      expect(await one.addResults('1', 'one', [resultOf(120, 'too late')])).toBe(false)
      expect(await two.addResults('1', 'two', [resultOf(5, 'again')])).toBe(true)
      expect((await two.linesDone('1')).size).toBe(120)
      expect(await two.countsOf(batch)).toEqual({ completed: 117, failed: 3 })
      const files = { output: fileOf('out', 0), error: fileOf('err', 0) }
      const data = { ...batch.data, outputFile: 'out', counts: { completed: 117, failed: 3 } }
      const ended: BatchRow = { ...batch, status: 'completed', data }
      expect(await one.finish(ended, 'one', files)).toBe(false)
      expect(await one.file('a', 'out')).toBeNull()
      expect(await two.finish(ended, 'two', files)).toBe(true)
      expect(await two.finish(ended, 'two', files)).toBe(false)
      expect(await two.addResults('1', 'two', [resultOf(0, 'after the end')])).toBe(false)
      expect(await two.claim(batch, 'two')).toBe(false)
      expect(await one.batch('a', '1')).toEqual(ended)
      const linesOf = async (id: string) => {
        const file = (await one.file('a', id))!
        const text = Buffer.from(await one.read(file)).toString()
        expect(file.bytes).toBe(text.length)
        return text.trim().split('\n').map(Number)
      }
      const all = Array.from({ length: 120 }, (_, line) => line)
      expect(await linesOf('out')).toEqual(all.filter((line) => line % 40 !== 3))
      expect(await linesOf('err')).toEqual(all.filter((line) => line % 40 === 3))
      expect((await one.linesDone('1')).size).toBe(0)
    })

    test('an expired file is deleted', async () => {
      const [store] = (await open(1)) as [BatchStore]
      await store.addFile({ ...fileOf('short', 3), expires: 2000 }, Buffer.from('abc'), 100)
      await store.addFile(fileOf('long', 3), Buffer.from('abc'), 100)
      await store.tidy(1999)
      expect(await store.files('a', null)).toHaveLength(2)
      await store.tidy(2000)
      expect((await store.files('a', null)).map(({ id }) => id)).toEqual(['long'])
    })
  })
})

describe.skipIf(NO_POSTGRES !== null)('the store of a cluster', () => {
  test('a batch whose lease has ended is free, by the clock of the database', async () => {
    const { database, store } = await openCluster()
    const batch = batchOf('1')
    await store.addBatch(batch, 1)
    expect(await store.claim(batch, 'hung')).toBe(true)
    expect(await store.claim(batch, 'other')).toBe(false)
    await database.query("update batch set lease = now() + interval '100 milliseconds'")
    await vi.waitFor(async () => expect(await store.claim(batch, 'other')).toBe(true), 5000)
    expect(await store.addResults('1', 'hung', [resultOf(0, 'late')])).toBe(false)
    expect(await store.claim(batch, 'hung')).toBe(false)
  })

  test('a result and a change of owner are ordered', async () => {
    const { database, store } = await openCluster()
    const batch = batchOf('1')
    await store.addBatch(batch, 1)
    await store.claim(batch, 'one')
    let result: Promise<boolean> | null = null
    await database.transaction(async (connection) => {
      await connection.query("update batch set owner = 'two'")
      result = store.addResults('1', 'one', [resultOf(0, 'late')])
      await delay(300)
    })
    expect(await result).toBe(false)
    expect((await store.linesDone('1')).size).toBe(0)
  })

  test('contents are blobs that are deleted with their file, and no cleanup takes them earlier', async () => {
    const { database, blobs, store } = await openCluster()
    const row = fileOf('one', 20_000_000)
    await store.addFile(row, new Uint8Array(20_000_000), 1e9)
    expect(await blobsIn(blobs)).toHaveLength(3)
    await blobs.put('orphan', [new Uint8Array(1)])
    await delay(20)
    expect(await sweep(database, blobs, 0)).toBe(1)
    expect((await store.read(row)).length).toBe(20_000_000)
    expect(await store.addFile(fileOf('two', 10), new Uint8Array(10), 5)).toBe(false)
    expect(await blobsIn(blobs)).toHaveLength(3)
    await store.removeFile(row)
    expect(await blobsIn(blobs)).toEqual([])
  })
})
