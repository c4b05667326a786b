/**
 * The `webgpu` backend: the ops of backend.ts in WGSL (kernels/webgpu) on any GPU that WebGPU reaches. Activations are f32,
 * states and weights as they were asked for. Nothing waits for the device: what is read arrives later. One backend is
 * one device, used from one thread; it owns everything it hands out.
 */
import { assert } from '../../errors.ts'
import type { Backend } from '../backend.ts'
import { flightOf } from '../flight.ts'
import { openDevice } from './adapter.ts'
import { type Feature, WebgpuDevice } from './device.ts'
import { WebgpuProgram } from './program.ts'
import {
  type Quantise,
  quantiseSlowly,
  Slabs,
  WebgpuHostTable,
  WebgpuMatrix,
  WebgpuTable,
  WebgpuTensor,
} from './resources.ts'
import { WebgpuPenaltyPool, WebgpuStatePool, type WkvType } from './states.ts'

export interface WebgpuBackend extends Backend {
  readonly device: WebgpuDevice
  readonly wkv: WkvType
  /** Takes back all that it has handed out; compiled kernels stay. */
  reset(): void
}

export interface WebgpuOptions {
  /** Rounds weights at load. */
  readonly quantise?: Quantise | undefined
  /** How states are held. */
  readonly wkv?: WkvType
  /** What is not used though the device has it: sums by subgroups, their matrix units in products of many tokens. */
  readonly without?: readonly Feature[]
}

/** Opening a device takes turns of the event loop, so a backend is opened before it is used. */
export async function openWebgpuBackend(
  index = 0,
  { quantise = quantiseSlowly, wkv = 'f32', without = [] }: WebgpuOptions = {},
): Promise<WebgpuBackend> {
  const device = new WebgpuDevice(await openDevice(index), without)
  let slabs = new Slabs(device)
  return {
    name: 'webgpu',
    device,
    wkv,
    description: `webgpu: ${device.name}${wkv === 'f16' ? ', f16 states' : ''}`,
    guessing: null,
    drawsLater: false,
    tensor: (shape, values) => new WebgpuTensor(device, shape, values),
    activation: (shape, values) => new WebgpuTensor(device, shape, values),
    readTensor(tensor, start = 0, count) {
      assert(tensor instanceof WebgpuTensor, 'a tensor of another backend')
      assert(!device.unwritten.has(tensor.start), 'a tensor that a program keeps as f16 alone')
      const length = count ?? tensor.count - start
      assert(start >= 0 && start + length <= tensor.count, 'readTensor beyond its tensor')
      const range = [device.arena, 4 * (tensor.start + start), 4 * length] as const
      return flightOf(device.read([range]).then((buffer) => new Float32Array(buffer)))
    },
    writeTensor(tensor, values) {
      assert(tensor instanceof WebgpuTensor, 'a tensor of another backend')
      assert(values.length <= tensor.count, 'writeTensor beyond its tensor')
      device.write(device.arena, 4 * tensor.start, values)
    },
    matrix: (source, type) => new WebgpuMatrix(device, slabs, quantise, source, type),
    table: (source) => new WebgpuTable(device, slabs, source),
    hostTable: (source) => new WebgpuHostTable(source),
    statePool: (shape, numSlots) => new WebgpuStatePool(device, shape, numSlots, wkv),
    penaltyPool: (vocabSize, numSlots) => new WebgpuPenaltyPool(device, vocabSize, numSlots),
    record: (capacity, build) => new WebgpuProgram(device, capacity, build),
    heldBytes: () => device.bytes,
    reset() {
      device.reset()
      slabs = new Slabs(device)
    },
    dispose: () => device.dispose(),
  }
}
