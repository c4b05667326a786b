import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, test } from 'vitest'
import { openCheckpoint } from '../../../src/model/checkpoint.ts'
import { describeCheckpoint } from '../../../src/model/formats/describe.ts'
import { flaTensors, readTensors, writeAsHuggingFace } from '../../helpers/formats.ts'
import { writeRandomRwkv7 } from '../../helpers/pth.ts'
import { temporaryFolder } from '../../helpers/temporary-folder.ts'

const folder = temporaryFolder()
const small = { layers: 2, channels: 64, headSize: 32, vocab: 16, ffn: 64 }
const tensors = flaTensors(readTensors(writeRandomRwkv7(join(folder, 'm.pth'), small)))
const directory = join(folder, 'model')
beforeEach(() => rmSync(directory, { recursive: true, force: true }))

test('a directory: names, sizes, format', () => {
  const checkpoint = openCheckpoint(writeAsHuggingFace(directory, tensors, { shards: 2 }))
  expect(checkpoint).toMatchObject({ path: directory, format: 'hugging-face', naming: 'fla' })
  expect(describeCheckpoint(checkpoint)).toMatchObject({
    architecture: 'rwkv7',
    layers: 2,
    channels: 64,
    missing: [],
    unexpected: [],
  })
  checkpoint.close()
})

test('a head tied to the embedding', () => {
  const untied = tensors.filter(({ name }) => name !== 'lm_head.weight')
  const open = (config: Record<string, unknown>) => {
    const checkpoint = openCheckpoint(writeAsHuggingFace(directory, untied, { config }))
    checkpoint.close()
    return checkpoint.tensors.get('head.weight')?.shape
  }
  expect(open({ tie_word_embeddings: true })).toEqual([16, 64])
  expect(open({ tie_word_embeddings: false })).toBeUndefined()
})

describe('a config with unsupported values is refused', () => {
  test.each<[Record<string, unknown>, string]>([
    [{ model_type: 'llama' }, 'a model of type "llama", not "rwkv7"'],
    [{ model_type: undefined }, 'a model of type "undefined"'],
    [{ attn: { layers: [0] } }, 'a hybrid of RWKV and attention'],
    [{ rwkv_architecture: 'hxa079' }, 'a hybrid of RWKV and attention'],
    [{ norm_eps: 1e-6 }, 'asks for norm_eps 0.000001; RWKV-7 has 0.00001'],
    [{ hidden_act: 'relu' }, 'asks for "relu" instead of sqrelu'],
  ])('%j', (config, message) => {
    writeAsHuggingFace(directory, tensors, { config })
    expect(() => openCheckpoint(directory)).toThrow(
      expect.objectContaining({ code: 'unsupported_weights', message: expect.stringContaining(message) }),
    )
  })
})

describe('an index that points elsewhere is refused', () => {
  const withIndex = (weightMap: unknown) => {
    writeAsHuggingFace(directory, tensors)
    const path = join(directory, 'model.safetensors.index.json')
    writeFileSync(path, JSON.stringify({ weight_map: weightMap }))
    return () => openCheckpoint(directory)
  }
  test.each([
    '../model.safetensors',
    '/etc/passwd',
    'a/b.safetensors',
    '..',
    '.hidden',
    'a\0b',
    'C:\\model.safetensors',
    7,
  ])('%j', (fileName) => {
    expect(withIndex({ a: fileName })).toThrow('which is no plain name')
  })

  test('a missing file, a tensor missing in it, no map', () => {
    expect(withIndex({ a: 'absent.safetensors' })).toThrow(expect.objectContaining({ code: 'not_found' }))
    expect(withIndex({ a: 'model.safetensors' })).toThrow('puts a into model.safetensors')
    expect(withIndex([])).toThrow('has no weight_map')
  })
})

test('no config, an invalid config, no weights', () => {
  mkdirSync(directory)
  expect(() => openCheckpoint(directory)).toThrow('a directory without config.json')
  writeFileSync(join(directory, 'config.json'), '{"model_type":')
  expect(() => openCheckpoint(directory)).toThrow('is not JSON')
  writeFileSync(join(directory, 'config.json'), '{"model_type":"rwkv7"}')
  expect(() => openCheckpoint(directory)).toThrow('model.safetensors: no such file')
})
