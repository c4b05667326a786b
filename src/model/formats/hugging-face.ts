/**
 * Opens a Hugging Face directory of the fla library: config.json, and one safetensors file or several with an index.
 * The tensors say what the model is; the config is only asked for what they cannot say. File names come from the index
 * and stay inside the directory.
 */

import { statSync } from 'node:fs'
import { join } from 'node:path'
import { SkeinError } from '../../errors.ts'
import { isObject, parsedJson } from '../../files/bytes.ts'
import { type ByteSource, corrupt, quote, readBytes, unsupported } from './byte-source.ts'
import { renamed } from './entry-views.ts'
import type { Checkpoint, TensorEntry } from './format.ts'
import { openFile } from './open-file.ts'
import { openSafetensors } from './safetensors/safetensors.ts'

const CONFIG = 'config.json'
const INDEX = 'model.safetensors.index.json'
const SINGLE = 'model.safetensors'
const MAX_JSON_BYTES = 64 * 1024 * 1024
const MAX_SHARDS = 1000
const FILE_NAME = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/
/** The epsilon of the model code; a config may not ask for another. */
const NORM_EPS = 1e-5
const ACTIVATION = 'sqrelu'

type Json = Readonly<Record<string, unknown>>

/** The tensors keep the names of the files. */
export function openHuggingFace(directory: string): Checkpoint {
  if (!isFile(join(directory, CONFIG))) {
    const message = `${directory} is a directory without ${CONFIG}; give the checkpoint file in it`
    throw new SkeinError('unsupported_weights', message)
  }
  const config = readJson(join(directory, CONFIG))
  checkConfig(directory, config)
  const shards = new Shards(directory)
  try {
    const tensors = isFile(join(directory, INDEX))
      ? indexedTensors(shards, join(directory, INDEX))
      : new Map(shards.open(SINGLE).tensors)
    shareTiedHead(config, tensors)
    const { fileBytes } = shards
    const close = () => shards.close()
    return { path: directory, format: 'hugging-face', tensors, fileBytes, close }
  } catch (error) {
    shards.close()
    throw error
  }
}

/** The files of one directory, each opened once. */
class Shards {
  readonly #directory: string
  readonly #open = new Map<string, Checkpoint>()

  constructor(directory: string) {
    this.#directory = directory
  }

  get fileBytes(): number {
    return [...this.#open.values()].reduce((sum, { fileBytes }) => sum + fileBytes, 0)
  }

  open(fileName: string): Checkpoint {
    const known = this.#open.get(fileName)
    if (known) return known
    const path = join(this.#directory, fileName)
    if (!isFile(path)) throw new SkeinError('not_found', `${path}: no such file, and the model needs it`)
    const source = openFile(path)
    try {
      const checkpoint = openSafetensors(source)
      this.#open.set(fileName, checkpoint)
      return checkpoint
    } catch (error) {
      source.close()
      throw error
    }
  }

  close(): void {
    for (const shard of this.#open.values()) shard.close()
  }
}

function indexedTensors(shards: Shards, indexPath: string): Map<string, TensorEntry> {
  const source = { path: indexPath }
  const { weight_map: weightMap } = readJson(indexPath)
  if (!isObject(weightMap)) throw corrupt(source, 'has no weight_map')
  const places = Object.entries(weightMap)
  if (new Set(places.map(([, fileName]) => fileName)).size > MAX_SHARDS)
    throw unsupported(source, `names more than ${MAX_SHARDS} files`)
  const tensors = new Map<string, TensorEntry>()
  for (const [name, fileName] of places) {
    if (typeof fileName !== 'string' || !FILE_NAME.test(fileName))
      throw corrupt(source, `names the file "${quote(String(fileName))}", which is no plain name`)
    const entry = shards.open(fileName).tensors.get(name)
    if (!entry) throw corrupt(source, `puts ${quote(name)} into ${fileName}, which lacks it`)
    tensors.set(name, entry)
  }
  return tensors
}

function checkConfig(directory: string, config: Json): void {
  const source = { path: join(directory, CONFIG) }
  const { model_type: type, rwkv_architecture: hybrid, attn, norm_eps: eps, hidden_act } = config
  if (hybrid !== undefined || (attn !== undefined && attn !== null))
    throw unsupported(source, 'describes a hybrid of RWKV and attention; only pure RWKV runs here')
  if (type !== 'rwkv7') throw unsupported(source, `describes a model of type "${quote(String(type))}", not "rwkv7"`)
  if (eps !== undefined && eps !== NORM_EPS)
    throw unsupported(source, `asks for norm_eps ${quote(String(eps))}; RWKV-7 has ${NORM_EPS}`)
  if (hidden_act !== undefined && hidden_act !== ACTIVATION)
    throw unsupported(source, `asks for "${quote(String(hidden_act))}" instead of ${ACTIVATION}`)
}

function shareTiedHead(config: Json, tensors: Map<string, TensorEntry>): void {
  const embedding = tensors.get('model.embeddings.weight')
  if (config.tie_word_embeddings !== true || !embedding || tensors.has('lm_head.weight')) return
  tensors.set('lm_head.weight', renamed(embedding, 'lm_head.weight'))
}

function readJson(path: string): Json {
  const source: ByteSource = openFile(path)
  try {
    if (source.size > MAX_JSON_BYTES) throw unsupported(source, `is ${source.size} bytes of JSON`)
    const text = new TextDecoder().decode(readBytes(source, 0, source.size, 'the JSON'))
    const value = parsedJson(text)
    if (value === undefined) throw corrupt(source, 'is not JSON')
    if (!isObject(value)) throw corrupt(source, 'is not a JSON object')
    return value
  } finally {
    source.close()
  }
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() ?? false
}
