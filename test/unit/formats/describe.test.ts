import { describe, expect, test } from 'vitest'
import { stateBytesOf } from '../../../src/backend/state-shape.ts'
import { randomModelDimensions } from '../../../src/bench/random-model.ts'
import { describeCheckpoint, rwkv7Dimensions } from '../../../src/model/formats/describe.ts'
import type { Checkpoint, TensorEntry } from '../../../src/model/formats/format.ts'
import { rwkv7Tensors } from '../../../src/model/formats/rwkv7-layout.ts'

type Shapes = Record<string, readonly number[]>

/** A checkpoint with shapes but no bytes; reading any fails. */
function checkpointOf(shapes: Shapes): Checkpoint {
  const entries = Object.entries(shapes).map(([name, shape]): [string, TensorEntry] => [
    name,
    {
      name,
      shape,
      dtype: name.includes('ln') ? 'f32' : 'bf16',
      read: () => {
        throw new Error('bytes were read')
      },
    },
  ])
  return { path: 'model.pth', format: 'pth', tensors: new Map(entries), fileBytes: 9, close: () => {} }
}

const dimensions = {
  layers: 2,
  channels: 128,
  heads: 2,
  headSize: 64,
  ffnSize: 512,
  vocabSize: 1000,
  ranks: { w: 8, a: 12, v: 16, g: 24 },
}
const good: Shapes = Object.fromEntries(rwkv7Tensors(dimensions).map(({ name, shape }) => [name, shape]))
const without = (name: string): Shapes => {
  const { [name]: _, ...rest } = good
  return rest
}

test('a complete RWKV-7 model', () => {
  const checkpoint = checkpointOf(good)
  expect(rwkv7Dimensions(checkpoint)).toEqual(dimensions)
  expect(describeCheckpoint(checkpoint)).toEqual({
    architecture: 'rwkv7',
    ...dimensions,
    numParameters: 681_088,
    dtypes: [
      { dtype: 'bf16', tensors: 53 },
      { dtype: 'f32', tensors: 16 },
    ],
    tensorBytes: 1_366_272,
    fileBytes: 9,
    hasTunedState: false,
    missing: [],
    unexpected: [],
    wrongShapes: [],
  })
})

test('variations among the released files are accepted', () => {
  const variants: Shapes = {
    ...good,
    'blocks.0.att.v0': [1, 1, 128],
    'blocks.0.att.v1': [128, 12],
    'blocks.0.att.v2': [12, 128],
    'blocks.0.att.x_r': [128],
    'blocks.1.att.w1': [128, 6],
    'blocks.1.att.w2': [6, 128],
    'blocks.0.att.time_state': [2, 64, 64],
  }
  expect(rwkv7Dimensions(checkpointOf(variants))).toEqual(dimensions)
  expect(describeCheckpoint(checkpointOf(variants))).toMatchObject({ unexpected: [], hasTunedState: true })
  const stray: Shapes = { ...good, 'blocks.0.att.time_stata': [2, 64, 64] }
  expect(describeCheckpoint(checkpointOf(stray)).unexpected).toEqual(['blocks.0.att.time_stata'])
})

test('a model of one layer has no value residual', () => {
  const one = { ...dimensions, layers: 1, ranks: { ...dimensions.ranks, v: 0 } }
  const shapes = Object.fromEntries(rwkv7Tensors(one).map(({ name, shape }) => [name, shape]))
  expect(rwkv7Dimensions(checkpointOf(shapes))).toEqual(one)
})

describe('errors are listed', () => {
  test.each<[string, Shapes]>([
    ['blocks.1.att.w2 has shape [8, 64], expected [8, 128]', { ...good, 'blocks.1.att.w2': [8, 64] }],
    ['blocks.0.att.w2 has shape [8, 128], expected [9, 128]', { ...good, 'blocks.0.att.w1': [128, 9] }],
    ['head.weight has shape [999, 128], expected [1000, 128]', { ...good, 'head.weight': [999, 128] }],
    ['blocks.0.att.k_k has shape [1, 1, 64], expected [1, 1, 128]', { ...good, 'blocks.0.att.k_k': [1, 1, 64] }],
    ['blocks.0.att.r_k has shape [3, 64], expected [2, 64]', { ...good, 'blocks.0.att.r_k': [3, 64] }],
    ['blocks.0.att.r_k has shape [128], expected [2, 64]', { ...good, 'blocks.0.att.r_k': [128] }],
    ['blocks.0.att.w1 has shape [128, 0]', { ...good, 'blocks.0.att.w1': [128, 0] }],
    ['emb.weight has shape [0, 128]', { ...good, 'emb.weight': [0, 128] }],
    [
      'blocks.1.ffn.key.weight has shape [256, 128], expected [512, 128]',
      { ...good, 'blocks.1.ffn.key.weight': [256, 128] },
    ],
    ['not a complete RWKV-7 model: emb.weight is missing', without('emb.weight')],
    ['not a complete RWKV-7 model: blocks.1.att.v1 is missing', without('blocks.1.att.v1')],
    ['not a complete RWKV-7 model: blocks.0.ffn.key.weight is missing', without('blocks.0.ffn.key.weight')],
    ['blocks.2.ln1.weight is missing', { ...good, 'blocks.99999999999.att.r_k': [2, 64] }],
    ['and 27 more', { ...good, 'blocks.2.att.r_k': [2, 64] }],
  ])('%s', (fault, shapes) => {
    expect(() => rwkv7Dimensions(checkpointOf(shapes))).toThrow(
      expect.objectContaining({ code: 'unsupported_weights', message: expect.stringContaining(fault) }),
    )
  })
})

test('a missing tensor is not reported as a mismatch of others', () => {
  for (const name of ['emb.weight', 'blocks.0.ffn.key.weight', 'blocks.0.att.w1', 'blocks.1.att.v1']) {
    const { missing, wrongShapes } = describeCheckpoint(checkpointOf(without(name)))
    expect({ missing, wrongShapes }).toEqual({ missing: [name], wrongShapes: [] })
  }
})

describe('architectures are recognised by their tensors', () => {
  const block = 'blocks.0.att.'
  test.each<[string, string, Shapes]>([
    [
      'rwkv7b',
      'an RWKV-7b model',
      { ...good, 'blocks.0.ffn.s_emb.weight': [1000, 1024], 'blocks.0.qkv.qq.weight': [256, 128] },
    ],
    ['rwkv6', 'an RWKV-6 model', { [`${block}time_maa_x`]: [1, 1, 128], [`${block}time_decay`]: [1, 1, 128] }],
    ['rwkv5.2', 'an RWKV-5.2 model', { [`${block}time_decay`]: [2, 64], [`${block}gate.weight`]: [128, 128] }],
    ['rwkv5.1', 'an RWKV-5.1 model', { [`${block}time_decay`]: [2, 1, 1], [`${block}gate.weight`]: [128, 128] }],
    ['rwkv5', 'an RWKV-5 model', { [`${block}time_decay`]: [2], [`${block}ln_x.weight`]: [128] }],
    ['rwkv4', 'an RWKV-4 model', { [`${block}time_decay`]: [128] }],
    ['state', 'a tuned initial state', { [`${block}time_state`]: [2, 64, 64] }],
    ['lora', 'a LoRA adapter', { [`${block}key.lora_A`]: [8, 128], [`${block}r_k`]: [2, 64] }],
    ['lora', 'a LoRA adapter', { [`${block}key.bone`]: [2, 64, 64] }],
    ['hybrid', 'a hybrid of RWKV and attention', { 'model.layers.0.self_attn.q.weight': [2, 2] }],
    ['unknown', 'tensors that are no known RWKV model', { 'model.layers.0.weight': [3] }],
  ])('%s', (architecture, phrase, shapes) => {
    const checkpoint = checkpointOf(shapes)
    expect(describeCheckpoint(checkpoint).architecture).toBe(architecture)
    expect(() => rwkv7Dimensions(checkpoint)).toThrow(`model.pth holds ${phrase}`)
  })

  test('architectures that keep something per token are refused with that reason', () => {
    const qkv = { 'blocks.0.qkv.qq.weight': [256, 128] }
    const attention = { 'model.layers.0.self_attn.q.weight': [2, 2] }
    for (const shapes of [{ ...good, ...qkv }, attention])
      expect(() => rwkv7Dimensions(checkpointOf(shapes))).toThrow(/grows with the text/)
  })

  describe('RWKV-7a', () => {
    const sizes = randomModelDimensions('7a-0.1b')
    const shapes = Object.fromEntries(rwkv7Tensors(sizes).map(({ name, shape }) => [name, shape]))

    test('as published: 2.01 GB, of which the tables are 1.6', () => {
      const summary = describeCheckpoint(checkpointOf(shapes))
      expect(summary).toMatchObject({ architecture: 'rwkv7a', missing: [], unexpected: [] })
      expect(summary.ranks).toEqual({ w: 64, a: 64, v: 32, g: 128, s: 32 })
      expect(summary.tensorBytes / 1e9).toBeCloseTo(2.01, 2)
      expect(rwkv7Dimensions(checkpointOf(shapes))).toEqual(sizes)
      expect(shapes['blocks.11.ffn.s_emb.weight']).toEqual([65536, 1024])
      // The size of RWKV-7; the tables do not count.
      expect(stateBytesOf(sizes)).toBe(stateBytesOf(randomModelDimensions('0.1b')))
    })

    test.each([
      ['blocks.3.ffn.s_emb_x.weight is missing', { 'blocks.3.ffn.s_emb_x.weight': undefined }],
      ['blocks.0.ffn.s_emb.weight is missing', { 'blocks.0.ffn.s_emb.weight': undefined }],
      [
        'blocks.2.ffn.s_emb.weight has shape [65536, 1000], expected [65536, 1024]',
        { 'blocks.2.ffn.s_emb.weight': [65536, 1000] },
      ],
      ['blocks.1.ffn.s2 has shape [64, 3072]', { 'blocks.1.ffn.s2': [64, 3072] }],
    ])('%s', (fault, changed) => {
      const entries = Object.entries({ ...shapes, ...changed })
      const found = Object.fromEntries(entries.flatMap(([n, s]) => (s ? [[n, s]] : [])))
      expect(() => rwkv7Dimensions(checkpointOf(found))).toThrow(fault)
    })
  })

  test('the largest model has 61 layers of 64 heads, and a state of 66 MB', () => {
    const sizes = randomModelDimensions('13.3b')
    const shapes = Object.fromEntries(rwkv7Tensors(sizes).map(({ name, shape }) => [name, shape]))
    expect(rwkv7Dimensions(checkpointOf(shapes))).toEqual(sizes)
    expect(stateBytesOf(sizes)).toBe(65_961_984)
  })

  test('RWKV-6 sizes', () => {
    const summary = describeCheckpoint(
      checkpointOf({
        'emb.weight': [1000, 128],
        [`${block}time_maa_x`]: [1, 1, 128],
        [`${block}time_maa_w1`]: [128, 160],
        [`${block}time_decay_w1`]: [128, 64],
        [`${block}time_faaaa`]: [2, 64],
        'blocks.0.ffn.key.weight': [448, 128],
      }),
    )
    expect(summary).toMatchObject({ layers: 1, channels: 128, heads: 2, headSize: 64, ffnSize: 448 })
    expect(summary.ranks).toEqual({ mix: 32, decay: 64 })
  })
})
