import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { loadRunner } from '../../src/host/load.ts'
import { type AdapterChoice, withAdapters } from '../../src/model/adapters.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { readFloats } from '../../src/model/formats/tensor-values.ts'
import { adapterChoices } from '../../src/settings/engine-choice.ts'
import { SETTINGS } from '../../src/settings/table.ts'
import { parseValues, type RawValues } from '../../src/settings/values.ts'
import { type NamedValues, readTensors, transpose, writeAsPth } from '../helpers/formats.ts'
import { logitsOfAll } from '../helpers/logits.ts'
import { type PthTensorValues, writePth, writeRandomRwkv7 } from '../helpers/pth.ts'
import { someTokens } from '../helpers/runner.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const folder = temporaryFolder()
const file = (name: string) => join(folder, name)
const KEY = 'blocks.0.att.key'
/** [out, in] */
const [ROWS, COLUMNS, RANK] = [12, 8, 3]

function numbers(count: number, seed: number): number[] {
  return Array.from({ length: count }, (_, i) => Math.fround(Math.sin(seed + 1.7 * i)))
}

type Matrix = number[][]
const matrix = (values: number[], columns: number): Matrix =>
  Array.from({ length: values.length / columns }, (_, row) => values.slice(row * columns, (row + 1) * columns))
const multiply = (b: Matrix, a: Matrix): Matrix =>
  b.map((row) => a[0]!.map((_, column) => row.reduce((sum, x, k) => sum + x * a[k]![column]!, 0)))
const plus = (x: Matrix, y: Matrix, factor = 1): Matrix =>
  x.map((row, i) => row.map((value, j) => value + factor * y[i]![j]!))

const W = numbers(ROWS * COLUMNS, 1)
const A = numbers(RANK * COLUMNS, 2)
const B = numbers(ROWS * RANK, 3)
const [w, a, b] = [matrix(W, COLUMNS), matrix(A, COLUMNS), matrix(B, RANK)]
const lora: PthTensorValues[] = [
  { name: `${KEY}.lora_A`, shape: [RANK, COLUMNS], values: A },
  { name: `${KEY}.lora_B`, shape: [ROWS, RANK], values: B },
]

function base(dtype: 'f32' | 'bf16' = 'f32') {
  writePth(file('base.pth'), [
    { name: `${KEY}.weight`, shape: [ROWS, COLUMNS], values: W, dtype },
    { name: 'ln_out.weight', shape: [4], values: [1, 1, 1, 1] },
    { name: 'blocks.0.att.x_k', shape: [1, 1, 4], values: [0, 0, 0, 0] },
  ])
  return openCheckpoint(file('base.pth'))
}

function merged(tensors: PthTensorValues[], choice: Partial<AdapterChoice> = {}) {
  writePth(file('adapter.pth'), tensors)
  return withAdapters(base(), [{ path: file('adapter.pth'), ...choice }])
}

/** The matrix as merged, compared with the plain arithmetic of the definition. */
function expectMatrix(checkpoint: ReturnType<typeof merged>, wanted: Matrix) {
  const values = readFloats(checkpoint.tensors.get(`${KEY}.weight`)!)
  const flat = wanted.flat()
  expect(values.length).toBe(flat.length)
  for (const [i, value] of flat.entries()) expect(values[i]).toBeCloseTo(value, 5)
}

describe('the arithmetic of each kind', () => {
  test('LoRA: W + scale · B·A, scale 2 unless given', () => {
    expectMatrix(merged(lora, { scale: 0.5 }), plus(w, multiply(b, a), 0.5))
    expectMatrix(merged(lora), plus(w, multiply(b, a), 2))
    expectMatrix(merged(lora, { scale: -1 }), plus(w, multiply(b, a), -1))
  })

  test.each([1, 4, 5, 8])('LoRA of rank %i', (rank) => {
    const factors = [numbers(rank * COLUMNS, 5), numbers(ROWS * rank, 6)] as const
    const tensors = [
      { name: `${KEY}.lora_A`, shape: [rank, COLUMNS], values: factors[0] },
      { name: `${KEY}.lora_B`, shape: [ROWS, rank], values: factors[1] },
    ]
    const product = multiply(matrix(factors[1], rank), matrix(factors[0], COLUMNS))
    expectMatrix(merged(tensors, { scale: 1 }), plus(w, product))
  })

  test('DoRA: every column is scaled to its length', () => {
    const M = numbers(COLUMNS, 4)
    const sum = plus(w, multiply(b, a), 0.5)
    const norms = M.map((_, j) => Math.hypot(...sum.map((row) => row[j]!)) + 1e-6)
    const wanted = sum.map((row) => row.map((value, j) => (M[j]! * value) / norms[j]!))
    const lengths = { name: `${KEY}.lora_M`, shape: [1, COLUMNS], values: M }
    expectMatrix(merged([...lora, lengths], { scale: 0.5 }), wanted)
  })

  test.each([2, 4])('Bone of blocks of %i', (size) => {
    const bone = numbers(COLUMNS * size, 9)
    const wanted = w.map((row, i) =>
      row.map((value, j) => {
        const block = Math.floor(j / size)
        const at = (k: number) => bone[(block * size + k) * size + (j % size)]!
        const ownBlock = row.slice(block * size, (block + 1) * size)
        return value + ownBlock.reduce((sum, x, k) => sum + x * at(k), 0) + at(i % size)
      }),
    )
    const tensor = { name: `${KEY}.bone`, shape: [COLUMNS / size, size, size], values: bone }
    expectMatrix(merged([tensor]), wanted)
  })

  test('PiSSA: the initial product is subtracted, the trained one added', () => {
    const [A0, B0] = [numbers(2 * COLUMNS, 7), numbers(ROWS * 2, 8)]
    writePth(file('init.pth'), [
      { name: `${KEY}.init_lora_A`, shape: [2, COLUMNS], values: A0 },
      { name: `${KEY}.init_lora_B`, shape: [ROWS, 2], values: B0 },
    ])
    const initial = multiply(matrix(B0, 2), matrix(A0, COLUMNS))
    const wanted = plus(plus(w, multiply(b, a)), initial, -1)
    expectMatrix(merged(lora, { init: file('init.pth') }), wanted)
    expect(() => merged(lora, { init: file('init.pth'), scale: 2 })).toThrow('has no scale')
  })

  test('full tensors replace the originals', () => {
    const { tensors } = merged([
      { name: 'ln_out.weight', shape: [4], values: [1, 2, 3, 4] },
      { name: 'blocks.0.att.x_k', shape: [4], values: [5, 6, 7, 8] },
    ])
    expect(Array.from(readFloats(tensors.get('ln_out.weight')!))).toEqual([1, 2, 3, 4])
    expect(tensors.get('blocks.0.att.x_k')!.shape).toEqual([1, 1, 4])
    expect(Array.from(readFloats(tensors.get('blocks.0.att.x_k')!))).toEqual([5, 6, 7, 8])
  })

  test('factors beside a full matrix are added to it, whichever comes first', () => {
    const own = numbers(ROWS * COLUMNS, 11)
    const whole = { name: `${KEY}.weight`, shape: [ROWS, COLUMNS], values: own }
    const wanted = plus(matrix(own, COLUMNS), multiply(b, a), 0.5)
    expectMatrix(merged([whole, ...lora], { scale: 0.5 }), wanted)
    expectMatrix(merged([...lora, whole], { scale: 0.5 }), wanted)
  })

  test('two adapters, one after the other; the names used by peft', () => {
    writePth(file('second.pth'), [
      { name: `base_model.model.${KEY}.lora_A.weight`, shape: [RANK, COLUMNS], values: A },
      { name: `base_model.model.${KEY}.lora_B.weight`, shape: [ROWS, RANK], values: B },
    ])
    writePth(file('adapter.pth'), lora)
    const both = withAdapters(base(), [
      { path: file('adapter.pth'), scale: 1 },
      { path: file('second.pth'), scale: 0.25 },
    ])
    expectMatrix(both, plus(w, multiply(b, a), 1.25))
  })

  test('the names and layout of web-rwkv', () => {
    const factors: NamedValues = { name: `${KEY}.lora.0`, shape: [RANK, COLUMNS], values: Float32Array.from(A) }
    expectMatrix(
      merged([transpose(factors), { ...lora[1]!, name: `${KEY}.lora.1` }], { scale: 1 }),
      plus(w, multiply(b, a)),
    )
  })
})

test('any range of elements equals that part of the whole; a bf16 base stays bf16', () => {
  writePth(file('adapter.pth'), lora)
  writePth(file('bone.pth'), [{ name: `${KEY}.bone`, shape: [4, 2, 2], values: numbers(16, 3) }])
  for (const path of [file('adapter.pth'), file('bone.pth')]) {
    const entry = withAdapters(base('bf16'), [{ path }]).tensors.get(`${KEY}.weight`)!
    expect(entry.dtype).toBe('bf16')
    const whole = entry.read(0, ROWS * COLUMNS).slice()
    for (const [start, end] of [
      [0, 8],
      [3, 5],
      [17, 60],
      [95, 96],
      [40, 40],
    ] as const) {
      expect(entry.read(start, end).slice()).toEqual(whole.slice(2 * start, 2 * end))
    }
  }
})

describe('a tensor that does not fit is refused by name', () => {
  const tensor = (name: string, ...shape: number[]): PthTensorValues => {
    return {
      name,
      shape,
      values: numbers(
        shape.reduce((x, y) => x * y, 1),
        1,
      ),
    }
  }
  test.each<[string, PthTensorValues[], string]>([
    ['an unknown tensor', [tensor('blocks.9.ln1.weight', 4)], 'has blocks.9.ln1.weight, for which'],
    [
      'an unknown matrix',
      [tensor('blocks.9.att.key.lora_A', 1, 8), tensor('blocks.9.att.key.lora_B', 12, 1)],
      'has blocks.9.att.key.lora_A, for which',
    ],
    ['a name with an escape', [tensor('ln\x1b[2J\nx', 4)], 'has ln?[2J?x, for which'],
    ['two kinds for one matrix', [...lora, tensor(`${KEY}.bone`, 4, 2, 2)], `has both Bone and LoRA for ${KEY}`],
    [
      'a tensor under two names',
      [lora[0]!, { ...lora[0]!, name: `base_model.model.${KEY}.lora_A.weight` }, lora[1]!],
      `holds ${KEY}.lora_A twice`,
    ],
    ['half a pair', [lora[0]!], `has no ${KEY}.lora_B beside`],
    ['A of another width', [tensor(`${KEY}.lora_A`, 3, 7), lora[1]!], 'lora_A of shape [3, 7]'],
    ['B of another rank', [lora[0]!, tensor(`${KEY}.lora_B`, 12, 2)], 'lora_B of shape [12, 2]'],
    ['M of another width', [...lora, tensor(`${KEY}.lora_M`, 1, 12)], 'lora_M of shape [1, 12]'],
    ['a flat bone', [tensor(`${KEY}.bone`, 2, 12)], 'bone of shape [2, 12]'],
    ['a bone that does not tile', [tensor(`${KEY}.bone`, 1, 8, 8)], 'bone of shape [1, 8, 8]'],
    ['a tensor of another shape', [tensor('ln_out.weight', 5)], 'ln_out.weight of shape [5]'],
    ['an adapter of a vector', [tensor('ln_out.lora_A', 1, 4)], 'ln_out.weight, which is no matrix'],
  ])('%s', (_what, tensors, message) => {
    expect(() => merged(tensors)).toThrow(
      expect.objectContaining({ code: 'unsupported_weights', message: expect.stringContaining(message) }),
    )
  })

  test('a scale for Bone, initial factors without PiSSA', () => {
    const bone = [tensor(`${KEY}.bone`, 4, 2, 2)]
    expect(() => merged(bone, { scale: 2 })).toThrow('is a Bone adapter, which has no scale')
    writePth(file('init.pth'), lora)
    expect(() => merged(bone, { init: file('init.pth') })).toThrow('has no LoRA factors')
    expect(() => merged(lora, { init: file('init.pth') })).toThrow('has no blocks.0.att.key.init_lo')
  })
})

test('a model with an adapter gives the answers of the merged model', () => {
  const model = writeRandomRwkv7(file('model.pth'), { layers: 2 })
  const adapter = file('lora.pth')
  const name = 'blocks.1.ffn.key'
  const factors = [numbers(4 * 128, 1), numbers(512 * 4, 2)] as const
  writePth(adapter, [
    { name: `${name}.lora_A`, shape: [4, 128], values: factors[0].map((x) => x / 8) },
    { name: `${name}.lora_B`, shape: [512, 4], values: factors[1] },
  ])
  const checkpoint = withAdapters(openCheckpoint(model), [{ path: adapter, scale: 0.5 }])
  const tensors = readTensors(model).map((tensor): NamedValues => {
    if (tensor.name !== `${name}.weight`) return tensor
    return { ...tensor, values: readFloats(checkpoint.tensors.get(tensor.name)!) }
  })
  checkpoint.close()
  const logits = (path: string, adapters: AdapterChoice[]) => {
    const runner = loadRunner({ model: path, adapters, device: 'cpu', slots: 1, threads: 1 })
    const values = logitsOfAll(runner, someTokens(4, 1))
    runner.dispose()
    return values
  }
  const wanted = logits(writeAsPth(file('merged.pth'), tensors), [])
  expect(logits(model, [{ path: adapter, scale: 0.5 }])).toEqual(wanted)
  expect(logits(model, [])).not.toEqual(wanted)
})

const adaptersOf = (raw: RawValues) => adapterChoices(parseValues(SETTINGS, raw))

describe('--lora', () => {
  test.each([
    [{ lora: 'a.pth' }, [{ path: 'a.pth' }]],
    [{ lora: 'a.pth:0.5' }, [{ path: 'a.pth', scale: 0.5 }]],
    [{ lora: 'C:\\x\\a.pth:2' }, [{ path: 'C:\\x\\a.pth', scale: 2 }]],
    [{ lora: 'C:\\a.pth' }, [{ path: 'C:\\a.pth' }]],
    [
      { lora: 'a:1,b:-1e-2' },
      [
        { path: 'a', scale: 1 },
        { path: 'b', scale: -0.01 },
      ],
    ],
    [{ lora: 'a', 'lora-init': 'i' }, [{ path: 'a', init: 'i' }]],
    [{}, []],
  ])('%j', (args, wanted) => {
    expect(adaptersOf(args)).toEqual(wanted)
  })

  test.each([{ 'lora-init': 'i' }, { lora: 'a,b', 'lora-init': 'i' }, { lora: 'a:1.2.3' }])('%j is refused', (args) => {
    expect(() => adaptersOf(args)).toThrow(expect.objectContaining({ code: 'invalid_request' }))
  })
})
