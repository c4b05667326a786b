/**
 * Mutated checkpoints: whatever the bytes, a reader answers with data or with one of two errors, takes no more memory
 * than the file has bytes, and ends. SKEIN_FUZZ sets the number of cases of each parser.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { SkeinError } from '../../../src/errors.ts'
import { readFloats } from '../../../src/model/checkpoint.ts'
import { describeCheckpoint } from '../../../src/model/formats/describe.ts'
import { unpickle } from '../../../src/model/formats/pickle.ts'
import { openPth } from '../../../src/model/formats/pth.ts'
import { recogniseFormat } from '../../../src/model/formats/recognise.ts'
import { readZip } from '../../../src/model/formats/zip.ts'
import { memorySource } from '../../helpers/memory-source.ts'
import { writePth } from '../../helpers/pth.ts'

const CASES = Number(process.env.SKEIN_FUZZ ?? 7_000)
/** Values at which size checks go wrong. */
const INTERESTING = [0, 1, 0x7f, 0x80, 0xff, 0x28, 0x2e, 0x52, 0x51, 0x74, 0x85, 0x94]

function randomOf(seed: number): (below: number) => number {
  let state = seed
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
}

/** One to eight edits: bytes replaced, bits flipped, runs filled or copied, a piece cut out. */
function mutate(original: Uint8Array, random: (below: number) => number): Uint8Array {
  const bytes = Uint8Array.from(original)
  for (let edits = 1 + random(8); edits > 0; edits--) {
    const at = random(bytes.length)
    const length = 1 + random(8)
    switch (random(5)) {
      case 0:
        bytes[at] = random(256)
        break
      case 1:
        bytes[at]! ^= 1 << random(8)
        break
      case 2:
        bytes.fill(INTERESTING[random(INTERESTING.length)]!, at, at + length)
        break
      case 3:
        bytes.copyWithin(at, random(bytes.length), random(bytes.length))
        break
      case 4:
        bytes[at] = INTERESTING[random(INTERESTING.length)]!
        break
    }
  }
  return random(10) === 0 ? bytes.subarray(0, random(bytes.length)) : bytes
}

function sampleFile(zip64: boolean): Buffer {
  const folder = mkdtempSync(join(tmpdir(), 'skein-fuzz-'))
  const path = join(folder, 'sample.pth')
  try {
    const tensors = [
      { name: 'emb.weight', shape: [3, 2], values: [1, 2, 3, 4, 5, 6] },
      {
        name: 'blocks.0.att.r_k',
        shape: [2, 1],
        strides: [1, 2],
        values: [1, 2],
        dtype: 'bf16' as const,
      },
      { name: 'blocks.0.ffn.key.weight', shape: [2], storageOffset: 1, values: [1, 2, 3] },
    ]
    writePth(path, tensors, { zip64, asParameters: zip64 })
    return readFileSync(path)
  } finally {
    rmSync(folder, { recursive: true })
  }
}

/** Runs `read` on mutations of the seeds; returns how many were accepted. */
function fuzz(seeds: readonly Uint8Array[], read: (bytes: Uint8Array) => void): number {
  const random = randomOf(42)
  let accepted = 0
  for (let i = 0; i < CASES; i++) {
    const bytes = mutate(seeds[i % seeds.length]!, random)
    try {
      read(bytes)
      accepted++
    } catch (error) {
      const isOurs =
        error instanceof SkeinError &&
        (error.code === 'corrupt_weights' || error.code === 'unsupported_weights')
      if (!isOurs)
        throw new Error(`case ${i}: ${Buffer.from(bytes).toString('base64')}`, { cause: error })
    }
  }
  return accepted
}

const files = [sampleFile(false), sampleFile(true)]

test('zip directories', () => {
  const accepted = fuzz(files, (bytes) => {
    const source = memorySource(bytes)
    for (const { offset, size } of readZip(source).values()) {
      expect(offset >= 0 && size >= 0 && offset + size <= bytes.length).toBe(true)
    }
    expect(source.largestRead).toBeLessThanOrEqual(bytes.length)
  })
  expect(accepted).toBeGreaterThan(0)
  expect(accepted).toBeLessThan(CASES)
})

test('pickles', () => {
  const pickles = files.map((bytes) => {
    const { offset, size } = readZip(memorySource(bytes)).get('archive/data.pkl')!
    return bytes.subarray(offset, offset + size)
  })
  const accepted = fuzz(pickles, (bytes) => {
    unpickle(bytes, { path: 'model.pth' })
  })
  expect(accepted).toBeGreaterThan(0)
  expect(accepted).toBeLessThan(CASES)
})

test('whole files, tensors read to the end', () => {
  let numRead = 0
  fuzz(files, (bytes) => {
    const source = memorySource(bytes)
    recogniseFormat(source)
    const checkpoint = openPth(source)
    describeCheckpoint(checkpoint)
    for (const entry of checkpoint.tensors.values()) numRead += readFloats(entry).length
    expect(source.largestRead).toBeLessThanOrEqual(bytes.length)
  })
  expect(numRead).toBeGreaterThan(0)
})
