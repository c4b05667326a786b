/**
 * Blob storages: a folder, a bucket of an S3 double, and one of a real server if there is one. All run the same tests.
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Blobs } from '../../src/state/shared/blobs.ts'
import { openBlobs } from '../../src/state/shared/open-blobs.ts'
import { S3_KEYS, type S3Double, startS3Double } from '../helpers/s3-double.ts'
import { NO_SWIFT, type Swift, startSwift } from '../helpers/swift-s3.ts'

let s3: S3Double
let swift: Swift | null = null
beforeAll(async () => {
  s3 = await startS3Double()
  if (NO_SWIFT === null) swift = await startSwift()
})
afterAll(() => {
  swift?.close()
  return s3.close()
})

const inBucket = (prefix = '/some/prefix', keys = S3_KEYS) =>
  openBlobs(`s3://bucket${prefix}`, { ...keys, AWS_ENDPOINT_URL: s3.url })

const inSwift = (more: Readonly<Record<string, string>> = {}) =>
  openBlobs(`s3://bucket/${Math.random()}`, { ...swift!.variables, ...more })

const MAKERS: readonly (readonly [string, () => Blobs])[] = [
  ['a folder', () => openBlobs(`file://${mkdtempSync(join(tmpdir(), 'skein blobs-'))}/new`)],
  ['a bucket', () => inBucket(`/${Math.random()}/`)],
  ...(NO_SWIFT === null ? [['a bucket of Swift', () => inSwift()] as const] : []),
]

const namesIn = async (blobs: Blobs) => {
  const names: string[] = []
  for await (const { name, changedAt } of blobs.list()) {
    expect(changedAt).toBeLessThan(Date.now() + 60_000)
    names.push(name)
  }
  return names.sort()
}

describe.each(MAKERS)('%s', (_, make) => {
  test('returns what was stored, in any number of parts', async () => {
    const blobs = make()
    const large = Uint8Array.from({ length: 3_000_000 }, (_, i) => i % 251)
    await blobs.put('abc', [large.subarray(0, 10), new Uint8Array(0), large.subarray(10)])
    expect(Buffer.compare(await blobs.get('abc'), large)).toBe(0)
    await blobs.put('none', [])
    expect(await blobs.get('none')).toHaveLength(0)
  })

  test('lists everything there is, and nothing that was removed', async () => {
    const blobs = make()
    expect(await namesIn(blobs)).toEqual([])
    const names = Array.from({ length: 8 }, (_, i) => `${i}-name`)
    for (const name of names) await blobs.put(name, [Uint8Array.of(1)])
    expect(await namesIn(blobs)).toEqual(names)
    await blobs.remove('3-name')
    await blobs.remove('3-name')
    expect(await namesIn(blobs)).toEqual(names.filter((name) => name !== '3-name'))
    await expect(blobs.get('3-name')).rejects.toThrow()
  })
})

test('a busy bucket is retried; a refusal is reported', async () => {
  const blobs = inBucket()
  s3.failures.push(503, 503)
  await blobs.put('late', [Uint8Array.of(7)])
  expect(await blobs.get('late')).toEqual(Uint8Array.of(7))
  s3.failures.push(413)
  await expect(blobs.put('large', [Uint8Array.of(7)])).rejects.toMatchObject({ code: 'state_refused' })
  const wrong = inBucket('', { ...S3_KEYS, AWS_SECRET_ACCESS_KEY: 'wrong' })
  await expect(wrong.get('late')).rejects.toThrow('403 (SignatureDoesNotMatch)')
  await expect(blobs.get('missing')).rejects.toThrow('404 (NoSuchKey)')
})

test.skipIf(NO_SWIFT !== null)('errors of a real server are passed on in its words', async () => {
  const wrong = inSwift({ AWS_SECRET_ACCESS_KEY: 'wrong' })
  await expect(wrong.get('any')).rejects.toThrow('403 (SignatureDoesNotMatch)')
  await expect(wrong.put('any', [])).rejects.toThrow('403 (SignatureDoesNotMatch)')
  await expect(inSwift().get('missing')).rejects.toThrow('404 (NoSuchKey)')
})

test('an invalid address, and a bucket without keys, are refused with a message', () => {
  for (const url of ['/folder', 'file://host/folder', 'http://x', 's3://', ''])
    expect(() => openBlobs(url, {})).toThrow('names no storage')
  expect(() => openBlobs('s3://bucket/x', {})).toThrow('AWS_ACCESS_KEY_ID')
})

test('a file that the system takes only a part of is no blob', () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-blobs-'))
  const code = `
    import { openBlobs } from '${new URL('../../dist/state/shared/open-blobs.js', import.meta.url)}'
    const parts = [new Uint8Array(400_000), new Uint8Array(3_000_000)]
    await openBlobs('file://${folder}').put('abc', parts).then(() => console.log('kept'), ({ code }) => console.log(code))
  `
  const command = 'ulimit -f 1024; exec "$0" --input-type=module -e "$1"'
  expect(execFileSync('sh', ['-c', command, process.execPath, code], { encoding: 'utf8' })).toBe('EFBIG\n')
  expect(readdirSync(join(folder, 'ab'))).toEqual([])
})
