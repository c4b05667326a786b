import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { openCheckpoint } from '../../../src/model/checkpoint.ts'
import { openGguf } from '../../../src/model/formats/gguf/checkpoint.ts'
import { readGguf } from '../../../src/model/formats/gguf/gguf.ts'
import { readFloats } from '../../../src/model/formats/tensor-values.ts'
import { Tokenizer } from '../../../src/tokenizer/tokenizer.ts'
import { parseVocabulary } from '../../../src/tokenizer/vocabulary.ts'
import { type GgufTensorValues, type GgufValue, ggufBytes } from '../../helpers/gguf.ts'
import { memorySource } from '../../helpers/memory-source.ts'
import { temporaryFolder } from '../../helpers/temporary-folder.ts'
import { tokenizerOf, vocabularyText, WORLD_VOCABULARY_PATH } from '../../helpers/vocabulary.ts'

const folder = temporaryFolder()
const RWKV7 = { 'general.architecture': 'rwkv7', 'rwkv7.wkv.head_size': 2 }
const tensor = (fields: Partial<GgufTensorValues> = {}): GgufTensorValues => ({
  name: 't',
  shape: [2, 3],
  type: 'F32',
  values: Float32Array.of(1, 2, 3, 4, 5, 6),
  ...fields,
})
const read = (...args: Parameters<typeof ggufBytes>) => readGguf(memorySource(ggufBytes(...args)))
const open = (metadata: Record<string, GgufValue>, ...tensors: GgufTensorValues[]) =>
  openGguf(memorySource(ggufBytes(metadata, tensors)))

describe('the header', () => {
  test.each([2, 3])('version %i: values, arrays, tensors', (version) => {
    const metadata = { a: 'text', b: 7, c: true, d: 0.5, e: ['x', 'y'], f: [1, 2, 3] }
    const tensors = [tensor(), tensor({ name: 'u', shape: [6], type: 'F16' })]
    const gguf = read(metadata, tensors, { version })
    expect(Object.fromEntries(gguf.values)).toEqual({ a: 'text', b: 7, c: true, d: 0.5 })
    expect(Object.fromEntries(gguf.texts)).toEqual({ e: ['x', 'y'] })
    expect(Object.fromEntries(gguf.numbers)).toEqual({ f: [1, 2, 3] })
    expect(gguf.tensors).toMatchObject([
      { name: 't', shape: [2, 3], type: 'F32', bytes: 24 },
      { name: 'u', shape: [6], type: 'F16', bytes: 12 },
    ])
  })

  test('a custom alignment', () => {
    const metadata = { 'general.alignment': 32 }
    const [first] = read(metadata, [tensor()]).tensors
    expect(first!.offset % 32).toBe(0)
    expect(() => read({ 'general.alignment': 48 }, [tensor()])).toThrow('an alignment of 48')
    expect(() => read({ 'general.alignment': 0 }, [tensor()])).toThrow('an alignment of 0')
  })

  /** The header of a small file with one field changed. */
  const patched = (change: (bytes: Buffer) => void) => {
    const bytes = ggufBytes({ k: 1 }, [tensor()])
    change(bytes)
    return memorySource(bytes)
  }
  // Magic, version, counts: 24 bytes; the key "k": 8 + 1; its type: 4; its value: 4; then the tensor's name.
  const [KEY_LENGTH, VALUE_TYPE, NAME_LENGTH] = [24, 33, 41]
  const [RANK, SIZE, TYPE, OFFSET] = [50, 54, 70, 74]

  test.each<[string, (bytes: Buffer) => void, string]>([
    ['version 1', (b) => b.writeUInt32LE(1, 4), 'is GGUF version 1; versions 2 and 3 are read'],
    ['more tensors than bytes', (b) => b.writeBigUInt64LE(2n ** 40n, 8), 'tensors in'],
    ['more keys than bytes', (b) => b.writeBigUInt64LE(2n ** 63n, 16), 'keys in'],
    ['a key of any length', (b) => b.writeBigUInt64LE(2n ** 33n, KEY_LENGTH), 'has a text of'],
    ['a value of no type', (b) => b.writeUInt32LE(13, VALUE_TYPE), 'a value of type 13'],
    ['a name longer than the file', (b) => b.writeBigUInt64LE(1000n, NAME_LENGTH), 'a text'],
    ['five dimensions', (b) => b.writeUInt32LE(5, RANK), 'tensor t has 5 dimensions'],
    ['a size beyond the file', (b) => b.writeBigUInt64LE(2n ** 50n, SIZE), 'tensor t should be'],
    ['sizes that overflow', (b) => b.fill(0xff, SIZE, SIZE + 16), 'tensor t should be'],
    ['an unknown type', (b) => b.writeUInt32LE(99, TYPE), 'tensor t is of type number 99'],
    ['a type not read here', (b) => b.writeUInt32LE(16, TYPE), 'is of type IQ2_XXS; F32, F16'],
    ['rows of half a block', (b) => b.writeUInt32LE(8, TYPE), 'rows of 3, not whole blocks of Q8_0'],
    ['an offset off its alignment', (b) => b.writeUInt32LE(4, OFFSET), 'not aligned to 32'],
    ['an offset outside', (b) => b.writeUInt32LE(64, OFFSET), 'tensor t should be 24 bytes'],
  ])('%s is refused', (_what, change, message) => {
    const source = patched(change)
    expect(() => readGguf(source)).toThrow(message)
    expect(source.largestRead).toBeLessThanOrEqual(source.size)
  })

  test('duplicate names, overlapping tensors, arrays of arrays', () => {
    expect(() => read({}, [tensor(), tensor()])).toThrow('holds tensor t twice')
    const bytes = ggufBytes({}, [tensor(), tensor({ name: 'u' })])
    const second = bytes.indexOf(Buffer.from([32, 0, 0, 0, 0, 0, 0, 0]), 24)
    bytes.writeUInt32LE(0, second)
    expect(() => readGguf(memorySource(bytes))).toThrow('tensors t and u overlap')
    const nested = ggufBytes({ list: [1] }, [])
    nested.writeUInt32LE(9, 24 + 8 + 4 + 4)
    expect(() => readGguf(memorySource(nested))).toThrow('has an array of arrays, list')
    const twice = ggufBytes({ ka: 1, kb: 2 }, [])
    twice[twice.indexOf('kb') + 1] = 'a'.charCodeAt(0)
    expect(() => readGguf(memorySource(twice))).toThrow('has the key ka twice')
  })
})

describe('other architectures than RWKV-6 and RWKV-7 are named', () => {
  test.each([
    ['rwkv6qwen2', 'a GGUF file of a hybrid of RWKV-6 and Qwen 2'],
    ['arwkv7', 'a GGUF file of a hybrid of RWKV-7 and a transformer'],
    ['llama', 'a GGUF file of a model of architecture "llama"; rwkv7 or rwkv6 was expected'],
  ])('%s', (architecture, message) => {
    expect(() => open({ 'general.architecture': architecture })).toThrow(
      expect.objectContaining({ code: 'unsupported_weights', message: expect.stringContaining(message) }),
    )
  })

  test('no architecture, no head size, an invalid rescale', () => {
    expect(() => open({})).toThrow('architecture "no architecture"')
    expect(() => open({ 'general.architecture': 'rwkv7' })).toThrow('does not say rwkv7.wkv.head')
    const rescale = { 'rwkv6.wkv.head_size': 2, 'rwkv6.rescale_every_n_layers': 0.5 }
    expect(() => open({ 'general.architecture': 'rwkv6', ...rescale })).toThrow('no whole number')
    const epsilon = { 'rwkv7.attention.layer_norm_epsilon': 0.5 }
    expect(() => open({ ...RWKV7, ...epsilon })).toThrow('a layer norm epsilon of 0.5, not 1e-5')
  })

  test('a tensor without a native name keeps its name; other metadata is passed on', () => {
    const { tensors, metadata } = open({ ...RWKV7, 'general.name': 'x' }, tensor())
    expect([...tensors.keys()]).toEqual(['t'])
    expect(metadata?.get('general.name')).toBe('x')
  })
})

test('parts of packed blocks', () => {
  const values = Float32Array.from({ length: 128 }, (_, i) => i - 64)
  const packed = tensor({ name: 'blk.1.time_mix_key.weight', shape: [2, 64], type: 'Q8_0', values })
  const { tensors } = open(RWKV7, packed)
  const entry = tensors.get('blocks.1.att.key.weight')!
  expect(entry).toMatchObject({ dtype: 'f32', packed: { type: 'Q8_0', bytes: 136 } })
  const whole = readFloats(entry)
  for (const [start, end] of [
    [0, 1],
    [31, 33],
    [40, 128],
    [64, 64],
  ] as const) {
    const bytes = entry.read(start, end)
    const part = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4)
    expect(Array.from(part)).toEqual(Array.from(whole.slice(start, end)))
  }
  expect(() => entry.read(0, 129)).toThrow('elements 0 to 129 of 128')
})

describe('the embedded vocabulary', () => {
  const vocabularyOf = (tokens: string[], types?: number[]) => {
    const metadata = {
      ...RWKV7,
      'tokenizer.ggml.model': 'rwkv',
      'tokenizer.ggml.tokens': tokens,
      ...(types ? { 'tokenizer.ggml.token_type': types } : {}),
    }
    return open(metadata).vocabulary?.()
  }
  const texts = (tokens: string[], types?: number[]) =>
    vocabularyOf(tokens, types)!.map(({ id, bytes }) => [id, Buffer.from(bytes).toString('latin1')])

  test('escapes, quotes, id 0 and padding', () => {
    const tokens = ['<s>', '\\x00', 'a', '\\n\\t\\r', '\\\\x41', "it's", '\\\'"', '\\xe4\\xbd', '[PAD8]']
    expect(texts(tokens)).toEqual([
      [1, '\0'],
      [2, 'a'],
      [3, '\n\t\r'],
      [4, '\\x41'],
      [5, "it's"],
      [6, '\'"'],
      [7, '\xe4\xbd'],
    ])
    expect(texts(['<s>', '[PAD9]'])).toEqual([[1, '[PAD9]']]) // not its own number: text
    expect(texts(['<s>', 'a', '<eot>', 'unused'], [3, 1, 3, 5])).toEqual([[1, 'a']])
  })

  test.each(['\\', '\\x4', '\\xzz', 'é', ''])('%j is no token', (text) => {
    expect(() => vocabularyOf(['<s>', text])).toThrow('its token 1')
  })

  test('other tokenizers are refused', () => {
    const other = { ...RWKV7, 'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.tokens': ['a'] }
    expect(open(other).vocabulary).toBeUndefined()
    expect(open(RWKV7).vocabulary).toBeUndefined()
  })

  /** As the converter writes it: a Python repr() literal without its quotes. */
  const asGguf = (text: string): string[] => {
    const tokens = parseVocabulary(text, 'test')
    const escaped = new Map(tokens.map(({ id, bytes }) => [id, pythonRepr(bytes)]))
    const size = 4 * Math.ceil((1 + Math.max(...escaped.keys())) / 4)
    return Array.from({ length: size }, (_, id) => escaped.get(id) ?? (id ? `[PAD${id}]` : '<s>'))
  }

  test('equals the tokenizer of the vocabulary file', () => {
    const text = vocabularyText(['ab', '\n\n', "it's", '\\n', '你', Buffer.from([0xff, 0x80])])
    const tokenizer = Tokenizer.fromTokens(vocabularyOf(asGguf(text))!, 'test')
    expect(tokenizer.hash).toBe(tokenizerOf(text).hash)
  })

  test.skipIf(WORLD_VOCABULARY_PATH === null)('the whole World vocabulary', () => {
    const world = Tokenizer.fromFile(WORLD_VOCABULARY_PATH!)
    const rows = Array.from({ length: 65_529 }, (_, i) => pythonRepr(world.bytesOf(i + 1)))
    const tokens = ['<s>', ...rows, ...Array.from({ length: 6 }, (_, i) => `[PAD${65_530 + i}]`)]
    expect(Tokenizer.fromTokens(vocabularyOf(tokens)!, 'test').hash).toBe(world.hash)
  })
})

/** repr() of a bytes object, without the b and the quotes. */
function pythonRepr(bytes: Uint8Array): string {
  const quote = bytes.includes(0x27) && !bytes.includes(0x22) ? '"' : "'"
  return Array.from(bytes, (byte) => {
    const character = String.fromCharCode(byte)
    if (character === quote || character === '\\') return `\\${character}`
    const simple = { '\n': '\\n', '\t': '\\t', '\r': '\\r' }[character]
    if (simple) return simple
    const isPrintable = byte >= 0x20 && byte < 0x7f
    return isPrintable ? character : `\\x${byte.toString(16).padStart(2, '0')}`
  }).join('')
}

test('a file on disk, by its path without suffix', () => {
  writeFileSync(join(folder, 'm.gguf'), ggufBytes(RWKV7, [tensor()]))
  const checkpoint = openCheckpoint(join(folder, 'm'))
  expect(checkpoint.path).toBe(join(folder, 'm.gguf'))
  expect(checkpoint.format).toBe('gguf')
  checkpoint.close()
})
