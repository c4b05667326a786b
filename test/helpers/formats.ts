/**
 * Writes one model in every format: a list of native tensors as safetensors, web-rwkv `.st`, Hugging Face directory,
 * GGUF and older torch file. Follows each format's own description, not the tables of the tested readers.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { encodeFloats } from '../../src/backend/half.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import type { GgufType } from '../../src/model/formats/gguf/types.ts'
import { openFile } from '../../src/model/formats/open-file.ts'
import { writeSafetensors } from '../../src/model/formats/safetensors/writer.ts'
import { readFloats } from '../../src/model/formats/tensor-values.ts'
import { readZip } from '../../src/model/formats/torch/zip.ts'
import { type GgufTensorValues, type GgufValue, writeGguf } from './gguf.ts'
import { writePth } from './pth.ts'

export interface NamedValues {
  readonly name: string
  readonly shape: readonly number[]
  readonly values: Float32Array
}

/** The tensors of a checkpoint as f32. */
export function readTensors(path: string): NamedValues[] {
  const checkpoint = openCheckpoint(path)
  try {
    return [...checkpoint.tensors.values()].map((entry) => {
      return { name: entry.name, shape: entry.shape, values: readFloats(entry) }
    })
  } finally {
    checkpoint.close()
  }
}

/** Makes every value exact in f32, f16 and bf16, even when divided by a few powers of two. */
export function exactIn16Bits(tensors: readonly NamedValues[]): NamedValues[] {
  return tensors.map(({ values, ...rest }) => {
    const rounded = values.map((value) => {
      const exponent = Math.floor(Math.log2(Math.abs(value) || 1))
      const step = Math.max(2 ** (exponent - 6), 2 ** -14)
      return Math.round(value / step) * step
    })
    return { ...rest, values: rounded }
  })
}

export function writeAsPth(path: string, tensors: readonly NamedValues[]): string {
  writePth(path, tensors)
  return path
}

export function writeAsSafetensors(path: string, tensors: readonly NamedValues[]): string {
  const written = tensors.map(({ name, shape, values }) => {
    return { name, shape, dtype: 'f32' as const, chunks: () => [encodeFloats(values, 'f32')] }
  })
  writeSafetensors(path, written, { format: 'pt' })
  return path
}

export function transpose({ name, shape, values }: NamedValues): NamedValues {
  const [rows, columns] = [shape.at(-2)!, shape.at(-1)!]
  const size = rows * columns
  const turned = values.map((_, i) => {
    const [stack, at] = [Math.floor(i / size), i % size]
    return values[stack * size + (at % rows) * columns + Math.floor(at / rows)]!
  })
  return { name, shape: [...shape.slice(0, -2), columns, rows], values: turned }
}

const LOW_RANK = /att\.(?:[wavg][12]|time_maa_w[12]|time_decay_w[12])$/

export function writeAsWebRwkv(path: string, tensors: readonly NamedValues[]): string {
  const converted = tensors.map((tensor) => {
    const { shape, values, name } = LOW_RANK.test(tensor.name) ? transpose(tensor) : tensor
    const renamed = name.toLowerCase().replace('time_faaaa', 'time_first')
    return { name: renamed.replace('time_maa', 'time_mix'), shape, values }
  })
  return writeAsSafetensors(path, converted)
}

const FLA_NAMES: readonly (readonly [RegExp, string])[] = [
  [/^emb\./, 'model.embeddings.'],
  [/^ln_out\./, 'model.norm.'],
  [/^head\./, 'lm_head.'],
  [/^blocks\.(\d+)\./, 'model.layers.$1.'],
  [/\.ln0\./, '.pre_norm.'],
  [/\.ln1\./, '.attn_norm.'],
  [/\.ln2\./, '.ffn_norm.'],
  [/\.att\.receptance\./, '.attn.r_proj.'],
  [/\.att\.key\./, '.attn.k_proj.'],
  [/\.att\.value\./, '.attn.v_proj.'],
  [/\.att\.output\./, '.attn.o_proj.'],
  [/\.att\.ln_x\./, '.attn.g_norm.'],
  [/\.att\.([wavg])0$/, '.attn.$1_lora.lora.2.bias'],
  [/\.att\.([wavg])1$/, '.attn.$1_lora.lora.0.weight'],
  [/\.att\.([wavg])2$/, '.attn.$1_lora.lora.2.weight'],
  [/\.att\./, '.attn.'],
]

export function flaTensors(tensors: readonly NamedValues[]): NamedValues[] {
  return tensors.map((tensor) => {
    const { shape, values } = LOW_RANK.test(tensor.name) ? transpose(tensor) : tensor
    const name = FLA_NAMES.reduce((text, [from, to]) => text.replace(from, to), tensor.name)
    const isBias = name.endsWith('lora.2.bias')
    return { name, shape: isBias ? [values.length] : shape, values }
  })
}

/** The first layout of fla: the six mixes of a layer in one tensor. */
export function stackMixes(tensors: readonly NamedValues[]): NamedValues[] {
  const isMix = ({ name }: NamedValues) => /attn\.x_[rwkvag]$/.test(name)
  const stacks = tensors
    .filter(({ name }) => name.endsWith('attn.x_r'))
    .map(({ name, values }) => {
      const parts = ['r', 'w', 'k', 'v', 'a', 'g'].map(
        (letter) => tensors.find((other) => other.name === name.replace(/r$/, letter))!,
      )
      const all = Float32Array.from(parts.flatMap((part) => Array.from(part.values)))
      return { name: name.replace(/x_r$/, 'x_x'), shape: [6, values.length], values: all }
    })
  return [...tensors.filter((tensor) => !isMix(tensor)), ...stacks]
}

export interface HuggingFaceOptions {
  readonly shards?: number
  readonly config?: Readonly<Record<string, unknown>>
}

export function writeAsHuggingFace(
  directory: string,
  tensors: readonly NamedValues[],
  { shards = 1, config = {} }: HuggingFaceOptions = {},
): string {
  mkdirSync(directory, { recursive: true })
  const base = { model_type: 'rwkv7', norm_eps: 1e-5, hidden_act: 'sqrelu', attn: null }
  writeFileSync(join(directory, 'config.json'), JSON.stringify({ ...base, ...config }))
  if (shards === 1) {
    writeAsSafetensors(join(directory, 'model.safetensors'), tensors)
    return directory
  }
  const weightMap: Record<string, string> = {}
  for (let shard = 0; shard < shards; shard++) {
    const fileName = `model-0000${shard + 1}-of-0000${shards}.safetensors`
    const own = tensors.filter((_, i) => i % shards === shard)
    for (const { name } of own) weightMap[name] = fileName
    writeAsSafetensors(join(directory, fileName), own)
  }
  const index = JSON.stringify({ metadata: {}, weight_map: weightMap })
  writeFileSync(join(directory, 'model.safetensors.index.json'), index)
  return directory
}

const GGUF_NAMES: readonly (readonly [RegExp, string])[] = [
  [/^emb\./, 'token_embd.'],
  [/^blocks\.0\.ln0\./, 'token_embd_norm.'],
  [/^ln_out\./, 'output_norm.'],
  [/^head\./, 'output.'],
  [/^blocks\./, 'blk.'],
  [/\.ln1\./, '.attn_norm.'],
  [/\.ln2\./, '.attn_norm_2.'],
  [/\.att\.ln_x\./, '.time_mix_ln.'],
  [/\.att\.time_faaaa$/, '.time_mix_first'],
  [/\.att\.time_maa_(w[12])$/, '.time_mix_$1'],
  [/\.att\.time_maa_(.)$/, '.time_mix_lerp_$1'],
  [/\.att\.time_decay/, '.time_mix_decay'],
  [/\.att\./, '.time_mix_'],
  [/\.ffn\.(?:x|time_maa)_/, '.channel_mix_lerp_'],
  [/\.ffn\./, '.channel_mix_'],
]

export interface GgufModelOptions {
  readonly architecture: 'rwkv6' | 'rwkv7'
  /** Type of the large matrices; everything else is F32. */
  readonly type: GgufType
  /** Type of the head; default `type`. */
  readonly headType?: GgufType
  /** How many numbers of a large tensor are encoded; they repeat for the rest. */
  readonly repeats?: number
  readonly headSize?: number
  readonly rescaleEvery?: number
  /** RWKV-6 files from before the mixes were fused. */
  readonly separateMixes?: boolean
  readonly metadata?: Readonly<Record<string, GgufValue>>
}

export function writeAsGguf(path: string, tensors: readonly NamedValues[], options: GgufModelOptions): string {
  const { architecture, type, headType = type, repeats } = options
  const { headSize = 64, rescaleEvery = 0 } = options
  const converted = tensors.flatMap((tensor) => ggufTensors(tensor, tensors, options))
  const large = /(?:token_embd|output|receptance|key|value|gate|output)\.weight$/
  const written = converted.map(
    ({ name, shape, values }): GgufTensorValues => ({
      name,
      shape: shape.filter((size) => size !== 1),
      type: name === 'output.weight' ? headType : large.test(name) ? type : 'F32',
      values,
      ...(large.test(name) && repeats && values.length % repeats === 0 && { repeats }),
    }),
  )
  const rescale = architecture === 'rwkv6' ? { 'rwkv6.rescale_every_n_layers': rescaleEvery } : {}
  const metadata = {
    'general.architecture': architecture,
    [`${architecture}.wkv.head_size`]: headSize,
    [`${architecture}.attention.layer_norm_epsilon`]: 1e-5,
    ...rescale,
    ...options.metadata,
  }
  return writeGguf(path, metadata, written)
}

function ggufTensors(
  tensor: NamedValues,
  all: readonly NamedValues[],
  { architecture, rescaleEvery = 0, separateMixes = false }: GgufModelOptions,
): NamedValues[] {
  const { name, values } = tensor
  const block = Number(/^blocks\.(\d+)\./.exec(name)?.[1] ?? 0)
  const order = architecture === 'rwkv7' ? 'rwkvag' : 'wkvrg'
  const stem = architecture === 'rwkv7' ? 'att.x_' : 'att.time_maa_'
  const mix = new RegExp(`${stem}([${order}])$`).exec(name)?.[1]
  const fused = !separateMixes && mix !== undefined
  if (fused && mix !== order[0]) return []
  if (fused) {
    const parts = [...order].map((letter) => all.find((other) => other.name === `blocks.${block}.${stem}${letter}`)!)
    const stacked = Float32Array.from(parts.flatMap((part) => Array.from(part.values)))
    const shape = [order.length, 1, 1, values.length]
    return [{ name: `blk.${block}.time_mix_lerp_fused.weight`, shape, values: stacked }]
  }
  const renamed = GGUF_NAMES.reduce((text, [from, to]) => text.replace(from, to), name)
  const ggufName = /\.(weight|bias)$/.test(renamed) ? renamed : `${renamed}.weight`
  const turned = LOW_RANK.test(name) ? transpose(tensor) : tensor
  const flat = name.endsWith('.r_k') ? { ...turned, shape: [values.length] } : turned
  const isRescaled = rescaleEvery > 0 && /(?:att\.output|ffn\.value)\.weight$/.test(name)
  const divisor = isRescaled ? 2 ** Math.floor(block / rescaleEvery) : 1
  const own = { ...flat, name: ggufName, values: flat.values.map((value) => value / divisor) }
  // The converter fills v0, v1, v2 of the first layer with copies of a0, a1, a2.
  const dummy = /^blocks\.0\.att\.a[012]$/.test(name)
  return dummy ? [own, { ...own, name: ggufName.replace('mix_a', 'mix_v') }] : [own]
}

/** The same object pickle, between the small pickles and before the bare storages of a file that is no zip. */
export function writeAsLegacyTorch(path: string, tensors: readonly NamedValues[]): string {
  writeAsPth(path, tensors)
  const entries = readZip(openFile(path))
  const file = readFileSync(path)
  const contentOf = (name: string) => {
    const { offset, size } = entries.get(`archive/${name}`)!
    return file.subarray(offset, offset + size)
  }
  const keys = tensors.map((_, i) => {
    const key = String(i)
    return Buffer.concat([Buffer.of(0x58, key.length, 0, 0, 0), Buffer.from(key)])
  })
  const storages = tensors.flatMap(({ values }, i) => {
    const length = Buffer.alloc(8)
    length.writeBigInt64LE(BigInt(values.length))
    return [length, contentOf(`data/${i}`)]
  })
  const little = '\x80\x02}X\x0d\0\0\0little_endian\x88s.'
  writeFileSync(
    path,
    Buffer.concat([
      Buffer.from('80028a0a6cfc9c46f9206aa850192e8002', 'hex'),
      Buffer.from(`M\xe9\x03.${little}`, 'latin1'),
      contentOf('data.pkl'),
      Buffer.from('\x80\x02](', 'latin1'),
      ...keys,
      Buffer.from('e.'),
      ...storages,
    ]),
  )
  return path
}
