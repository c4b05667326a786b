import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { loadRunner } from '../../src/host/load.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { describeCheckpoint } from '../../src/model/formats/describe.ts'
import { openTunedState } from '../../src/model/tuned-state-file.ts'
import { logitsOfAll, logitsOfLast } from '../helpers/logits.ts'
import { type PthTensorValues, writePth } from '../helpers/pth.ts'
import { someTokens, tinyRunner } from '../helpers/runner.ts'

const FOLDER = mkdtempSync(join(tmpdir(), 'skein-'))
const SHAPE = { layers: 2, channels: 64, heads: 2, headSize: 32 }

/** Numbers that are all different. */
function stateTensor(layer: number, shape: readonly number[] = [2, 32, 32]): PthTensorValues {
  const count = shape.reduce((a, b) => a * b, 1)
  const values = Float32Array.from({ length: count }, (_, i) => Math.fround(Math.sin(i + layer)))
  return { name: `blocks.${layer}.att.time_state`, shape, values }
}

function file(tensors: readonly PthTensorValues[]): string {
  const path = join(FOLDER, 'state.pth')
  writePth(path, tensors)
  return path
}

test('rows stay values, columns stay keys; the token shift is zero', () => {
  const tensors = [stateTensor(1), stateTensor(0)]
  const [shift, wkv] = openTunedState(file(tensors), SHAPE)
  expect(wkv).toEqual(Float32Array.from([1, 0].flatMap((i) => Array.from(tensors[i]!.values))))
  expect(shift).toEqual(new Float32Array(2 * 2 * 64))
})

test('16-bit states are read', () => {
  const half = [0, 1].map((layer) => ({ ...stateTensor(layer), dtype: 'bf16' as const }))
  const [, wkv] = openTunedState(file(half), SHAPE)
  expect(wkv![5]).toBeCloseTo(Math.sin(5), 2)
})

describe('what does not fit is refused with the reason', () => {
  const nan = stateTensor(1)
  const broken = Float32Array.from(nan.values)
  broken[7] = Number.POSITIVE_INFINITY
  test.each<[string, readonly PthTensorValues[]]>([
    ['is for 1 layer of 2 heads; the model has 2 layers of 2 heads', [stateTensor(0)]],
    ['is for 3 layers of 2 heads; the model has 2 layers of 2 heads', [0, 1, 2].map((layer) => stateTensor(layer))],
    [
      'is for 2 layers of 4 heads; the model has 2 layers of 2 heads',
      [0, 1].map((layer) => stateTensor(layer, [4, 32, 32])),
    ],
    [
      'is for 2 layers of 1 head of size 64; the model has 2 layers of 2 heads of size 32',
      [0, 1].map((layer) => stateTensor(layer, [1, 64, 64])),
    ],
    [
      'has tuned states of shape [2, 32, 16], expected [2, 32, 32] in each of 2 layers',
      [0, 1].map((layer) => stateTensor(layer, [2, 32, 16])),
    ],
    [
      'has tuned states of shape [2, 32, 32] and [2, 1024], expected [2, 32, 32] in each',
      [stateTensor(0), stateTensor(1, [2, 1024])],
    ],
    ['has no blocks.1.att.time_state', [stateTensor(0), stateTensor(2)]],
    ['blocks.1.att.time_state has values that are not finite', [stateTensor(0), { ...nan, values: broken }]],
    [
      'holds blocks.0.att.time_offset',
      [stateTensor(0), stateTensor(1), { name: 'blocks.0.att.time_offset', shape: [1], values: [0] }],
    ],
    ['holds other?[2J', [{ name: 'other\x1b[2J', shape: [1], values: [0] }]],
    ['holds other', [{ name: 'other', shape: [1], values: [0] }]],
  ])('%s', (reason, tensors) => {
    const path = file(tensors)
    expect(() => openTunedState(path, SHAPE)).toThrow(
      expect.objectContaining({ code: 'state_incompatible', message: expect.stringContaining(`${path}`) }),
    )
    expect(() => openTunedState(path, SHAPE)).toThrow(reason)
  })

  test('a model without a state is not a state file', () => {
    const path = file([{ name: 'emb.weight', shape: [1, 1], values: [0] }])
    expect(() => openTunedState(path, SHAPE)).toThrow('holds no tuned state')
  })
})

describe('a state inside a model', () => {
  const golden = join(import.meta.dirname, '../fixtures/golden-rwkv6')

  /** The golden model with the golden state among its tensors. */
  function tunedModel(): string {
    const [model, state] = [openCheckpoint(`${golden}.pth`), openCheckpoint(`${golden}-state.pth`)]
    const tensors = [...model.tensors.values(), ...state.tensors.values()].map((entry) => {
      const { name, shape, dtype } = entry
      const count = shape.reduce((a, b) => a * b, 1)
      const bytes = Uint8Array.from(entry.read(0, count))
      const values =
        dtype === 'f32'
          ? new Float32Array(bytes.buffer)
          : new Float32Array(Uint32Array.from(new Uint16Array(bytes.buffer), (b) => b << 16).buffer)
      return { name, shape, dtype, values }
    })
    const path = join(FOLDER, 'tuned.pth')
    writePth(path, tensors)
    return path
  }

  test.each(['reference', 'cpu'] as const)('is where %s starts, whichever slot', (backend) => {
    const model = tunedModel()
    const tokens = someTokens(9, 3).map((token) => token % 128)
    const tuned = loadRunner({ model, device: backend, slots: 2 })
    const plain = loadRunner({ model: `${golden}.pth`, device: backend, slots: 2 })
    const start = openTunedState(`${golden}-state.pth`, plain.info.stateShape)
    const wanted = logitsOfAll(plain, tokens, start)
    expect(logitsOfAll(tuned, tokens)).toEqual(wanted)
    expect(logitsOfLast(tuned, tokens)).toEqual(wanted.subarray(-128))
    expect(tuned.readState(0).result()).not.toEqual(start)
    tuned.clearSlot(1)
    expect(tuned.readState(1).result()).toEqual(start)
    expect(tuned.info.fingerprint).not.toBe(plain.info.fingerprint)
    tuned.dispose()
    plain.dispose()
  })

  test('is shown by inspect, without an error', () => {
    const checkpoint = openCheckpoint(tunedModel())
    expect(describeCheckpoint(checkpoint)).toMatchObject({
      architecture: 'rwkv6',
      hasTunedState: true,
      missing: [],
      unexpected: [],
      wrongShapes: [],
    })
    checkpoint.close()
  })
})

test('different states in one batch give the results of each alone', () => {
  const runner = tinyRunner('cpu', { architecture: 'rwkv6', slots: 4 })
  const { layers, heads, headSize, channels } = runner.info.stateShape
  const shift = new Float32Array(layers * 2 * channels)
  const starts = [1, 2, 3].map((seed) => [
    shift,
    Float32Array.from({ length: layers * heads * headSize ** 2 }, (_, i) => Math.sin(seed * i)),
  ])
  const tokens = someTokens(12, 4)
  const alone = [null, ...starts].map((start) => logitsOfLast(runner, tokens, start))
  for (let slot = 0; slot < 4; slot++) runner.clearSlot(slot)
  for (const [i, start] of starts.entries()) runner.writeState(i + 1, start).result()
  const row = (slot: number) => ({ slot, tokens: tokens.slice(0, -1), samples: [] })
  runner.step([row(2), row(0), row(3), row(1)])
  const together = [0, 1, 2, 3].map((slot) => {
    const last = { slot, tokens: tokens.slice(-1), samples: [], allLogits: true }
    return runner.step([last])[0]!.logits!
  })
  expect(together).toEqual(alone)
  expect(new Set(alone.map((logits) => logits[0])).size).toBe(4)
  runner.dispose()
})
