/**
 * A GGUF file as a checkpoint: the tensors of `rwkv6` and `rwkv7` under their native names and layouts. What the
 * converter of llama.cpp did is undone here: mixes fused into one tensor, low-rank factors transposed, r_k flattened,
 * deep layers of RWKV-6 divided by powers of two, tensors copied to fill layer 0. Packed tensors read as f32, or as
 * their blocks (packed-source.ts).
 */
import { type ByteSource, corrupt, quote, unsupported } from '../byte-source.ts'
import { byName, renamed, scaled, sliced, Transposer } from '../entry-views.ts'
import type { Checkpoint, CheckpointToken, TensorEntry } from '../format.ts'
import { checkElements, placedEntry, ReadBuffer } from '../read-buffer.ts'
import { unpackBlocks } from './blocks.ts'
import { type Gguf, type GgufTensor, readGguf } from './gguf.ts'
import { keepBlocks, placeBlocks } from './packed-source.ts'
import { BLOCK_SIZES, type BlockType, plainType } from './types.ts'

/** Takes over the source: `close` of the checkpoint closes it. If this throws, the caller still owns it. */
export function openGguf(source: ByteSource): Checkpoint {
  const gguf = readGguf(source)
  const facts = readFacts(source, gguf)
  const buffer = new ReadBuffer(source)
  const unpacked = new UnpackedBuffer()
  const transposer = new Transposer()
  const entries = gguf.tensors.map((tensor) => tensorEntry(buffer, unpacked, tensor))
  const natives = entries.flatMap((entry) => nativeEntries(entry, facts, transposer))
  const { path, size } = source
  const vocabulary = ggufVocabulary(source, gguf)
  return {
    path,
    format: 'gguf',
    naming: 'llama.cpp',
    tensors: byName(source, natives),
    metadata: gguf.values,
    ...(vocabulary ? { vocabulary } : {}),
    fileBytes: size,
    close: () => source.close(),
  }
}

interface Facts {
  readonly architecture: 'rwkv6' | 'rwkv7'
  readonly headSize: number
  /** RWKV-6: output matrices of layer l were divided by 2^⌊l / this⌋; 0 for never. */
  readonly rescaleEvery: number
}

const NORM_EPS = 1e-5
const HYBRIDS: Readonly<Record<string, string>> = {
  rwkv6qwen2: 'a hybrid of RWKV-6 and Qwen 2',
  arwkv7: 'a hybrid of RWKV-7 and a transformer',
}

function readFacts(source: ByteSource, { values }: Gguf): Facts {
  const architecture = values.get('general.architecture')
  if (architecture !== 'rwkv6' && architecture !== 'rwkv7') {
    const found = String(architecture ?? 'no architecture')
    const phrase = HYBRIDS[found] ?? `a model of architecture "${quote(found)}"`
    throw unsupported(source, `is a GGUF file of ${phrase}; rwkv7 or rwkv6 was expected`)
  }
  const headSize = values.get(`${architecture}.wkv.head_size`)
  if (typeof headSize !== 'number' || !(Number.isSafeInteger(headSize) && headSize > 0))
    throw corrupt(source, `does not say ${architecture}.wkv.head_size`)
  const rescaleEvery = values.get(`${architecture}.rescale_every_n_layers`) ?? 0
  if (typeof rescaleEvery !== 'number' || !(Number.isSafeInteger(rescaleEvery) && rescaleEvery >= 0))
    throw corrupt(source, `has a ${architecture}.rescale_every_n_layers that is no whole number`)
  checkEpsilon(source, values.get(`${architecture}.attention.layer_norm_epsilon`))
  return { architecture, headSize, rescaleEvery }
}

/** What the model code computes with; a file may not ask for another. It is an f32 in the file. */
function checkEpsilon(source: ByteSource, given: unknown): void {
  if (given === undefined || given === Math.fround(NORM_EPS) || given === NORM_EPS) return
  throw unsupported(source, `asks for a layer norm epsilon of ${quote(String(given))}, not 1e-5`)
}

/** The one buffer that blocks are unpacked into. */
class UnpackedBuffer {
  #values = new Float32Array(0)

  take(count: number): Float32Array {
    if (this.#values.length < count) this.#values = new Float32Array(count)
    return this.#values.subarray(0, count)
  }
}

function tensorEntry(buffer: ReadBuffer, unpacked: UnpackedBuffer, tensor: GgufTensor): TensorEntry {
  const { name, shape, type, offset } = tensor
  const plain = plainType(type)
  if (plain) return placedEntry(buffer, { name, shape, dtype: plain, offset })
  const entry = packedEntry(buffer, unpacked, tensor, type as BlockType) // those that are not plain
  placeBlocks(entry, buffer, tensor)
  return entry
}

/** Reads whole blocks and hands out the part that was asked for. */
function packedEntry(
  buffer: ReadBuffer,
  unpacked: UnpackedBuffer,
  { name, shape, offset, bytes }: GgufTensor,
  type: BlockType,
): TensorEntry {
  const block = BLOCK_SIZES[type]
  const count = (bytes / block.bytes) * block.elements
  const read = (start: number, end: number) => {
    checkElements(name, start, end, count)
    const first = Math.floor(start / block.elements)
    const numBlocks = Math.ceil(end / block.elements) - first
    const packed = buffer.read(offset + first * block.bytes, numBlocks * block.bytes)
    const values = unpacked.take(numBlocks * block.elements)
    unpackBlocks(type, packed, values)
    const skipped = start - first * block.elements
    const part = values.subarray(skipped, skipped + end - start)
    return new Uint8Array(part.buffer, part.byteOffset, part.byteLength)
  }
  return { name, shape, dtype: 'f32', packed: { type, bytes }, read }
}

/** The part of a tensor's name that says what it is → the native one. */
const GLOBAL: ReadonlyMap<string, string> = new Map([
  ['token_embd', 'emb'],
  ['token_embd_norm', 'blocks.0.ln0'],
  ['output_norm', 'ln_out'],
  ['output', 'head'],
])

const MODULES: ReadonlyMap<string, string> = new Map([
  ['attn_norm', 'ln1'],
  ['attn_norm_2', 'ln2'],
  ['time_mix_ln', 'att.ln_x'],
  ['time_mix_receptance', 'att.receptance'],
  ['time_mix_key', 'att.key'],
  ['time_mix_value', 'att.value'],
  ['time_mix_gate', 'att.gate'],
  ['time_mix_output', 'att.output'],
  ['channel_mix_key', 'ffn.key'],
  ['channel_mix_value', 'ffn.value'],
  ['channel_mix_receptance', 'ffn.receptance'],
])

/** Parameters of their own: natively without `.weight`. */
const PARAMETERS: Readonly<Record<Facts['architecture'], ReadonlyMap<string, string>>> = {
  rwkv7: new Map([
    ...['w0', 'w1', 'w2', 'a0', 'a1', 'a2', 'v0', 'v1', 'v2', 'g1', 'g2', 'k_k', 'k_a', 'r_k'].map(
      (name) => [`time_mix_${name}`, `att.${name}`] as const,
    ),
    ['channel_mix_lerp_k', 'ffn.x_k'],
  ]),
  rwkv6: new Map([
    ['time_mix_first', 'att.time_faaaa'],
    ['time_mix_decay', 'att.time_decay'],
    ['time_mix_decay_w1', 'att.time_decay_w1'],
    ['time_mix_decay_w2', 'att.time_decay_w2'],
    ['time_mix_w1', 'att.time_maa_w1'],
    ['time_mix_w2', 'att.time_maa_w2'],
    ...['x', 'w', 'k', 'v', 'r', 'g'].map((letter) => [`time_mix_lerp_${letter}`, `att.time_maa_${letter}`] as const),
    ['channel_mix_lerp_k', 'ffn.time_maa_k'],
    ['channel_mix_lerp_r', 'ffn.time_maa_r'],
  ]),
}

/** The order of the mixes in time_mix_lerp_fused, and what each is called. */
const FUSED_MIXES: Readonly<Record<Facts['architecture'], readonly string[]>> = {
  rwkv7: ['x_r', 'x_w', 'x_k', 'x_v', 'x_a', 'x_g'],
  rwkv6: ['w', 'k', 'v', 'r', 'g'].map((letter) => `time_maa_${letter}`),
}

const TRANSPOSED = /\.att\.([wavg][12]|time_maa_w[12]|time_decay_w[12])$/
const RESCALED = /\.(att\.output|ffn\.value)\.weight$/

/** A tensor as the native ones it stands for; those that mean nothing to us keep their name. */
function nativeEntries(entry: TensorEntry, facts: Facts, transposer: Transposer): TensorEntry[] {
  const { architecture } = facts
  const [, block, module = '', kind = ''] = /^(?:blk\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(entry.name) ?? []
  if (block === undefined) {
    const native = GLOBAL.get(module)
    return [native === undefined ? entry : keepBlocks(renamed(entry, `${native}.${kind}`), entry)]
  }
  if (module === 'time_mix_lerp_fused') return splitMixes(entry, block, architecture)
  const parameter = PARAMETERS[architecture].get(module)
  if (parameter !== undefined) {
    // What llama.cpp needs in layer 0 and no RWKV-7 has: copies of a0, a1, a2.
    if (block === '0' && /^att\.v[012]$/.test(parameter)) return []
    return [parameterEntry(renamed(entry, `blocks.${block}.${parameter}`), facts, transposer)]
  }
  const native = MODULES.get(module)
  if (native === undefined) return [entry]
  const matrix = renamed(entry, `blocks.${block}.${native}.${kind}`)
  const { rescaleEvery } = facts
  if (rescaleEvery === 0 || !RESCALED.test(matrix.name)) return [keepBlocks(matrix, entry)]
  const factor = 2 ** Math.floor(Number(block) / rescaleEvery)
  return [keepBlocks(scaled(matrix, factor), entry, factor)]
}

function parameterEntry(entry: TensorEntry, facts: Facts, transposer: Transposer): TensorEntry {
  if (TRANSPOSED.test(entry.name)) return transposer.view(entry)
  const [count] = entry.shape
  const isFlat = entry.shape.length === 1 && count !== undefined && count % facts.headSize === 0
  if (!/\.att\.(r_k|time_faaaa)$/.test(entry.name) || !isFlat) return entry
  return { ...entry, shape: [count / facts.headSize, facts.headSize] }
}

function splitMixes(entry: TensorEntry, block: string, architecture: Facts['architecture']): TensorEntry[] {
  const names = FUSED_MIXES[architecture]
  if (entry.shape[0] !== names.length) return [entry]
  return names.map((name, index) => sliced(entry, `blocks.${block}.att.${name}`, index))
}

/**
 * The World vocabulary as a GGUF file carries it: one text per id, in which bytes are escaped as Python's repr does.
 * Id 0 and other control tokens have no bytes; the ids that pad the vocabulary to the model's size are no tokens.
 */

const TOKENIZER_MODEL = 'rwkv'
/** Values of tokenizer.ggml.token_type. */
const CONTROL = 3
const UNUSED = 5

/** Undefined where the file has none, or one that is not RWKV's. */
function ggufVocabulary(source: Pick<ByteSource, 'path'>, { values, texts, numbers }: Gguf) {
  const tokens = texts.get('tokenizer.ggml.tokens')
  if (values.get('tokenizer.ggml.model') !== TOKENIZER_MODEL || !tokens) return undefined
  const types = numbers.get('tokenizer.ggml.token_type') ?? []
  return () => {
    const found: CheckpointToken[] = []
    for (const [id, text] of tokens.entries()) {
      const isToken = id > 0 && types[id] !== CONTROL && types[id] !== UNUSED
      if (!isToken || text === `[PAD${id}]`) continue
      found.push({ id, bytes: tokenBytes(source, id, text) })
    }
    return found
  }
}

const SIMPLE_ESCAPES: Readonly<Record<string, number>> = { t: 9, n: 10, r: 13 }
const BACKSLASH = 0x5c

/** ASCII with \t \n \r \xNN; a backslash before any other character stands for that character. */
function tokenBytes(source: Pick<ByteSource, 'path'>, id: number, text: string): Uint8Array {
  const bytes: number[] = []
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code !== BACKSLASH) {
      if (code > 0x7f) throw unescapable(source, id, text)
      bytes.push(code)
      continue
    }
    at++
    const escaped = text[at]
    if (escaped === undefined) throw unescapable(source, id, text)
    if (escaped !== 'x') {
      bytes.push(SIMPLE_ESCAPES[escaped] ?? escaped.charCodeAt(0))
      continue
    }
    const digits = text.slice(at + 1, at + 3)
    if (!/^[0-9a-fA-F]{2}$/.test(digits)) throw unescapable(source, id, text)
    bytes.push(Number.parseInt(digits, 16))
    at += 2
  }
  if (bytes.length === 0) throw unescapable(source, id, text)
  return Uint8Array.from(bytes)
}

function unescapable(source: Pick<ByteSource, 'path'>, id: number, text: string): Error {
  return corrupt(source, `its token ${id}, "${quote(text)}", is not escaped as RWKV tokens are`)
}
