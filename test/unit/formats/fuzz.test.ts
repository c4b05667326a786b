/**
 * Mutated checkpoints: whatever the bytes, a reader returns data or one of two errors, allocates no more memory than
 * the file has bytes, and ends. SKEIN_FUZZ sets the number of cases per parser.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { SkeinError } from '../../../src/errors.ts'
import { describeCheckpoint } from '../../../src/model/formats/describe.ts'
import type { Checkpoint } from '../../../src/model/formats/format.ts'
import { openGguf } from '../../../src/model/formats/gguf/checkpoint.ts'
import { withNativeNames } from '../../../src/model/formats/native-names.ts'
import { recogniseFormat } from '../../../src/model/formats/recognise.ts'
import { openSafetensors } from '../../../src/model/formats/safetensors/safetensors.ts'
import { readFloats } from '../../../src/model/formats/tensor-values.ts'
import { openLegacyTorch } from '../../../src/model/formats/torch/legacy.ts'
import { unpickle } from '../../../src/model/formats/torch/pickle.ts'
import { openPth } from '../../../src/model/formats/torch/pth.ts'
import { readZip } from '../../../src/model/formats/torch/zip.ts'
import { Tokenizer } from '../../../src/tokenizer/tokenizer.ts'
import {
  flaTensors,
  type NamedValues,
  writeAsGguf,
  writeAsLegacyTorch,
  writeAsSafetensors,
} from '../../helpers/formats.ts'
import { memorySource } from '../../helpers/memory-source.ts'
import { writePth } from '../../helpers/pth.ts'
import { randomOf } from '../../helpers/random.ts'
import { trials } from '../../helpers/slow.ts'

const CASES = Number(process.env.SKEIN_FUZZ ?? trials(2_500, 7_000))
/** Values at which size checks tend to fail. */
const INTERESTING = [0, 1, 0x7f, 0x80, 0xff, 0x28, 0x2e, 0x52, 0x51, 0x74, 0x85, 0x94]

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

function fileBy(write: (path: string) => unknown): Buffer {
  const folder = mkdtempSync(join(tmpdir(), 'skein-fuzz-'))
  const path = join(folder, 'sample')
  try {
    write(path)
    return readFileSync(path)
  } finally {
    rmSync(folder, { recursive: true })
  }
}

function sampleFile(zip64: boolean): Buffer {
  return fileBy((path) => {
    const tensors = [
      { name: 'emb.weight', shape: [3, 2], values: [1, 2, 3, 4, 5, 6] },
      { name: 'blocks.0.att.r_k', shape: [2, 1], strides: [1, 2], values: [1, 2], dtype: 'bf16' as const },
      { name: 'blocks.0.ffn.key.weight', shape: [2], storageOffset: 1, values: [1, 2, 3] },
    ]
    writePth(path, tensors, { zip64, asParameters: zip64 })
  })
}

/** Names that every view in native-names.ts and gguf-checkpoint.ts handles. */
const SAMPLE: NamedValues[] = [
  ['emb.weight', [2, 4]],
  ...[...'rwkvag'].map((letter) => [`blocks.0.att.x_${letter}`, [1, 1, 4]]),
  ['blocks.0.att.w1', [4, 2]],
  ['blocks.0.att.r_k', [2, 2]],
  ['blocks.0.att.output.weight', [4, 4]],
  ['ln_out.bias', [4]],
].map(([name, shape], i) => {
  // The literals above are pairs of a name and a shape.
  const sizes = shape as number[]
  const count = sizes.reduce((a, b) => a * b)
  return { name: name as string, shape: sizes, values: new Float32Array(count).fill(i + 0.5) }
})

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
        error instanceof SkeinError && (error.code === 'corrupt_weights' || error.code === 'unsupported_weights')
      if (!isOurs) throw new Error(`case ${i}: ${Buffer.from(bytes).toString('base64')}`, { cause: error })
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

test('whole files, with all tensors read', () => {
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

/** Reads everything that a checkpoint offers; readers may not request more bytes than there are. */
function readAll(bytes: Uint8Array, open: (source: ReturnType<typeof memorySource>) => Checkpoint) {
  const source = memorySource(bytes)
  recogniseFormat(source)
  const checkpoint = withNativeNames(open(source))
  describeCheckpoint(checkpoint)
  let count = 0
  for (const entry of checkpoint.tensors.values()) count += readFloats(entry).length
  const tokens = checkpoint.vocabulary?.() ?? []
  expect(tokens.length).toBeLessThanOrEqual(bytes.length)
  if (tokens.length >= 256) Tokenizer.fromTokens(tokens, 'fuzz')
  expect(source.largestRead).toBeLessThanOrEqual(bytes.length)
  return count
}

/** Bytes of a token as GGUF files have them. */
const escaped = (byte: number) => `\\x${byte.toString(16).padStart(2, '0')}`
const VOCABULARY = ['<s>', ...Array.from({ length: 256 }, (_, byte) => escaped(byte))]

test.each<[string, (path: string) => unknown, Parameters<typeof readAll>[1]]>([
  ['safetensors', (path) => writeAsSafetensors(path, SAMPLE), openSafetensors],
  ['fla names', (path) => writeAsSafetensors(path, flaTensors(SAMPLE)), openSafetensors],
  ['legacy torch', (path) => writeAsLegacyTorch(path, SAMPLE), openLegacyTorch],
  [
    'GGUF of RWKV-7',
    (path) => writeAsGguf(path, SAMPLE, { architecture: 'rwkv7', type: 'F16', headSize: 2 }),
    openGguf,
  ],
  [
    'GGUF of RWKV-6 with a vocabulary, packed',
    (path) =>
      writeAsGguf(
        path,
        SAMPLE.filter(({ name }) => !/x_|w1/.test(name)).map((tensor) => {
          const isMatrix = tensor.name.endsWith('weight')
          return isMatrix ? { ...tensor, shape: [1, 32], values: new Float32Array(32) } : tensor
        }),
        {
          architecture: 'rwkv6',
          type: 'Q5_1',
          headSize: 2,
          rescaleEvery: 1,
          metadata: {
            'tokenizer.ggml.model': 'rwkv',
            'tokenizer.ggml.tokens': VOCABULARY,
            'tokenizer.ggml.token_type': VOCABULARY.map((_, id) => (id === 0 ? 3 : 1)),
          },
        },
      ),
    openGguf,
  ],
])('%s, with all tensors read', (_what, write, open) => {
  const seed = fileBy(write)
  expect(readAll(seed, open)).toBeGreaterThan(0)
  let numRead = 0
  const accepted = fuzz([seed], (bytes) => {
    numRead += readAll(bytes, open)
  })
  expect(accepted).toBeGreaterThan(0)
  expect(accepted).toBeLessThan(CASES)
  expect(numRead).toBeGreaterThan(0)
})
