/**
 * The recurrent states and the penalties of a webgpu backend's slots; all operations are in order with the steps. Knows
 * nothing of who owns a slot.
 */
/// <reference types="@webgpu/types" />
import { assert, SkeinError } from '../../errors.ts'
import type { PenaltyPool, StatePool } from '../backend.ts'
import { doneFlight, type Flight, flightOf } from '../flight.ts'
import {
  arraysOf,
  checkState,
  createState,
  type StateData,
  type StateShape,
} from '../state-shape.ts'
import { USAGE, type WebgpuDevice } from './device.ts'

/** Arrays within a slot begin at multiples of so many numbers: vectors of four. */
const UNIT = 4
const MOVES_AT_ONCE = 4

/** Where an array is within a slot's part of a layer, in numbers. */
interface Place {
  readonly name: string
  readonly start: number
  readonly size: number
}

export class WebgpuStatePool implements StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  readonly bytesPerSlot: number
  /** Numbers of a slot in a layer. */
  readonly slotSize: number
  readonly #device: WebgpuDevice
  readonly #places: readonly Place[]
  /** Of each layer f32 [slots + 1, slotSize]; the last slot is for rows that turn out not to run. */
  readonly #layers: readonly GPUBuffer[]
  #numReads = 0

  constructor(device: WebgpuDevice, shape: StateShape, numSlots: number) {
    const { headSize } = shape
    if (headSize % 16 !== 0 || headSize > 128)
      throw new SkeinError(
        'unsupported_weights',
        `the head size must be a multiple of 16, and 128 at most; this model has ${headSize}`,
      )
    this.shape = shape
    this.numSlots = numSlots
    this.#device = device
    let start = 0
    this.#places = arraysOf(shape).map(({ name, size }) => {
      const place = { name, start, size }
      start += Math.ceil(size / UNIT) * UNIT
      return place
    })
    this.slotSize = start
    this.bytesPerSlot = 4 * start * shape.layers
    const usage = USAGE.storage | USAGE.copySrc | USAGE.copyDst
    this.#layers = Array.from({ length: shape.layers }, () =>
      device.buffer(4 * start * (numSlots + 1), usage),
    )
  }

  layer(layer: number): GPUBuffer {
    const buffer = this.#layers[layer]
    assert(buffer, `layer ${layer} of ${this.#layers.length}`)
    return buffer
  }

  /** Of an array within a slot, in numbers. */
  startOf(name: string): number {
    const place = this.#places.find((one) => one.name === name)
    assert(place, `states of this model have no ${name}`)
    return place.start
  }

  /** Of a slot in a layer, in bytes. */
  #at(slot: number): number {
    assert(slot >= 0 && slot < this.numSlots, `slot ${slot} of ${this.numSlots}`)
    return 4 * slot * this.slotSize
  }

  clear(slot: number): void {
    const at = this.#at(slot)
    this.#device.check()
    for (const layer of this.#layers) this.#device.encoder.clearBuffer(layer, at, 4 * this.slotSize)
  }

  poison(slot: number): void {
    const at = this.#at(slot)
    const poison = new Float32Array(this.slotSize).fill(Number.NaN)
    for (const layer of this.#layers) this.#device.write(layer, at, poison)
  }

  copy(from: number, to: number): void {
    const [source, target] = [this.#at(from), this.#at(to)]
    this.#device.check()
    if (from === to) return
    const bytes = 4 * this.slotSize
    for (const layer of this.#layers) {
      // WebGPU copies within one buffer only by way of another.
      const scratch = this.#copyScratch(bytes)
      this.#device.encoder.copyBufferToBuffer(layer, source, scratch, 0, bytes)
      this.#device.encoder.copyBufferToBuffer(scratch, 0, layer, target, bytes)
    }
  }

  #scratch: GPUBuffer | null = null

  #copyScratch(bytes: number): GPUBuffer {
    this.#scratch ??= this.#device.buffer(bytes, USAGE.copySrc | USAGE.copyDst)
    return this.#scratch
  }

  get canMove(): boolean {
    return this.#numReads < MOVES_AT_ONCE
  }

  read(slot: number, into: StateData = createState(this.shape)): Flight<StateData> {
    const at = this.#at(slot)
    checkState(this.shape, into)
    const bytes = 4 * this.slotSize
    const ranges = this.#layers.map((layer) => [layer, at, bytes] as const)
    this.#numReads++
    const read = this.#device.read(ranges).finally(() => this.#numReads--)
    return flightOf(read.then((buffer) => this.#unpack(new Float32Array(buffer), into)))
  }

  #unpack(values: Float32Array, into: StateData): StateData {
    for (const [i, { start, size }] of this.#places.entries())
      for (const layer of this.#layers.keys()) {
        const from = layer * this.slotSize + start
        into[i]!.set(values.subarray(from, from + size), layer * size)
      }
    return into
  }

  /** The queue takes its own copy at once. */
  write(slot: number, state: StateData): Flight<void> {
    const at = this.#at(slot)
    checkState(this.shape, state)
    const values = new Float32Array(this.slotSize)
    for (const [layer, buffer] of this.#layers.entries()) {
      for (const [i, { start, size }] of this.#places.entries())
        values.set(state[i]!.subarray(layer * size, (layer + 1) * size), start)
      this.#device.write(buffer, at, values)
    }
    return doneFlight(undefined)
  }
}

/** In the prompt, in the word that the sampler keeps for a token. */
const IN_PROMPT = 0x80000000

export class WebgpuPenaltyPool implements PenaltyPool {
  readonly vocabSize: number
  readonly numSlots: number
  /** u32 [slots, V]; see sample.wgsl */
  readonly seen: GPUBuffer
  readonly #device: WebgpuDevice

  constructor(device: WebgpuDevice, vocabSize: number, numSlots: number) {
    this.#device = device
    this.vocabSize = vocabSize
    this.numSlots = numSlots
    this.seen = device.buffer(4 * vocabSize * numSlots, USAGE.storage | USAGE.copyDst)
  }

  reset(slot: number, promptTokens: Int32Array): void {
    assert(slot >= 0 && slot < this.numSlots, `penalty slot ${slot} of ${this.numSlots}`)
    const at = 4 * slot * this.vocabSize
    this.#device.check()
    if (promptTokens.length === 0) {
      this.#device.encoder.clearBuffer(this.seen, at, 4 * this.vocabSize)
      return
    }
    const words = new Uint32Array(this.vocabSize)
    for (const token of promptTokens) {
      assert(token >= 0 && token < this.vocabSize, `prompt token ${token} of ${this.vocabSize}`)
      words[token] = IN_PROMPT
    }
    this.#device.write(this.seen, at, words)
  }
}
