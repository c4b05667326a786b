/**
 * The recurrent states and the penalties of a webgpu backend's slots; all operations are in order with the steps. Knows
 * nothing of who owns a slot.
 */
/// <reference types="@webgpu/types" />
import { assert, SkeinError } from '../../errors.ts'
import type { PenaltyPool, StatePool } from '../backend.ts'
import { doneFlight, type Flight, flightOf } from '../flight.ts'
import { decodeFloats, encodeFloats } from '../half.ts'
import { arraysOf, checkState, createState, type StateData, type StateShape } from '../state-shape.ts'
import { USAGE, type WebgpuDevice } from './device.ts'

/** Arrays within a slot begin at multiples of so many words: vectors of four. */
const UNIT = 4
const MOVES_AT_ONCE = 4
/** A word of NaN, of one f32 and of two f16. */
const POISON = { f32: 0x7fc00000, f16: 0x7e007e00 } as const

/** How the matrices of states are held; see kernels/webgpu/wkv-state-f16.wgsl. */
export type WkvType = 'f32' | 'f16'

/** Where an array is within a slot's part of a layer, in words. */
interface Place {
  readonly name: string
  readonly type: WkvType
  readonly start: number
  readonly words: number
  /** In numbers. */
  readonly size: number
}

export class WebgpuStatePool implements StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  readonly bytesPerSlot: number
  readonly wkvType: WkvType
  /** Words of a slot in a layer. */
  readonly slotSize: number
  readonly #device: WebgpuDevice
  readonly #places: readonly Place[]
  /** Of each layer [slots + 1, slotSize]; the last slot is for rows that turn out not to run. */
  readonly #layers: readonly GPUBuffer[]
  #numReads = 0

  constructor(device: WebgpuDevice, shape: StateShape, numSlots: number, wkvType: WkvType) {
    const { headSize } = shape
    if (headSize % 16 !== 0 || headSize > 128)
      throw new SkeinError(
        'unsupported_weights',
        `the head size must be a multiple of 16, and 128 at most; this model has ${headSize}`,
      )
    this.shape = shape
    this.numSlots = numSlots
    this.wkvType = wkvType
    this.#device = device
    let start = 0
    this.#places = arraysOf(shape).map(({ name, size }) => {
      // The others are small, and read again in every step.
      const type = name === 'wkv' ? wkvType : 'f32'
      const words = type === 'f16' ? size / 2 : size
      const place = { name, type, start, words, size }
      start += Math.ceil(words / UNIT) * UNIT
      return place
    })
    this.slotSize = start
    this.bytesPerSlot = 4 * start * shape.layers
    const usage = USAGE.storage | USAGE.copySrc | USAGE.copyDst
    this.#layers = Array.from({ length: shape.layers }, () => device.buffer(4 * start * (numSlots + 1), usage))
    device.reserveStaging(this.bytesPerSlot, Math.min(MOVES_AT_ONCE, numSlots))
  }

  layer(layer: number): GPUBuffer {
    const buffer = this.#layers[layer]
    assert(buffer, `layer ${layer} of ${this.#layers.length}`)
    return buffer
  }

  /** Of an array within a slot, in words. */
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
    const poison = new Uint32Array(this.slotSize)
    for (const { type, start, words } of this.#places) poison.fill(POISON[type], start, start + words)
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
    return flightOf(read.then((buffer) => this.#unpack(buffer, into)))
  }

  #unpack(buffer: ArrayBuffer, into: StateData): StateData {
    for (const [i, { type, start, words, size }] of this.#places.entries())
      for (const layer of this.#layers.keys()) {
        const bytes = new Uint8Array(buffer, 4 * (layer * this.slotSize + start), 4 * words)
        into[i]!.set(decodeFloats(bytes, type), layer * size)
      }
    return into
  }

  /** The queue takes its own copy at once. */
  write(slot: number, state: StateData): Flight<void> {
    const at = this.#at(slot)
    checkState(this.shape, state)
    const bytes = new Uint8Array(4 * this.slotSize)
    for (const [layer, buffer] of this.#layers.entries()) {
      for (const [i, { type, start, size }] of this.#places.entries())
        bytes.set(encodeFloats(state[i]!.subarray(layer * size, (layer + 1) * size), type), 4 * start)
      this.#device.write(buffer, at, bytes)
    }
    return doneFlight(undefined)
  }
}

/** In the prompt, in the word that the sampler keeps for a token. */
const IN_PROMPT = 0x80000000

export class WebgpuPenaltyPool implements PenaltyPool {
  readonly vocabSize: number
  readonly numSlots: number
  /** u32 [slots, V]; see draw.wgsl */
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
