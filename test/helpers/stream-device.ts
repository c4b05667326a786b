/**
 * A device that runs its two streams and other threads as late and in as odd an order as a driver may: what no event
 * orders happens in any order. Memory is ordinary memory, so reads that come too early and overwrites that come too
 * soon show in the numbers. It has only what StateLanes needs of a CudaDevice.
 */
import type { CudaDevice } from '../../src/backend/cuda/device/device.ts'
import { CUDA_WORDS } from '../../src/backend/cuda/kinds/cuda.ts'

const NOT_READY = 600
const ALIGNMENT = 256

type Op = { readonly run: () => void; readonly isBlocked?: () => boolean }

interface Pinned {
  readonly buffer: ArrayBuffer
  readonly address: bigint
}

export class StreamDevice {
  readonly stream = 1n
  readonly copyStream = 2n
  /** Device memory. */
  readonly memory: Float32Array
  readonly events = new Set<bigint>()
  readonly #pick: (below: number) => number
  readonly #streams = new Map<bigint, Op[]>([
    [1n, []],
    [2n, []],
  ])
  readonly #threads: (() => void)[] = []
  readonly #pinned = new Map<bigint, ArrayBuffer>()
  readonly #ends: (() => void)[] = []
  /** By event: how often it was recorded, and how many records were reached. */
  readonly #recorded = new Map<bigint, number>()
  readonly #reached = new Map<bigint, number>()
  #numBytes = 0
  #numEvents = 0n

  /** `pick(n)` is a number below n. */
  constructor(numFloats: number, pick: (below: number) => number) {
    this.memory = new Float32Array(numFloats)
    this.#pick = pick
  }

  /** As the type that lanes expect. */
  get asCuda(): CudaDevice {
    // It has every member that lanes use.
    return this as unknown as CudaDevice
  }

  readonly driver = {
    words: CUDA_WORDS,
    call: (name: string, ...args: unknown[]) => this.#call(name, args as bigint[]),
    functions: {
      cuEventQuery: (event: bigint) => (this.#isReached(event, this.#target(event)) ? 0 : NOT_READY),
      cuEventSynchronize: (event: bigint) => {
        while (!this.#isReached(event, this.#target(event))) this.runOne()
        return 0
      },
    },
    error: () => new Error('a failed call'),
  }

  alloc(bytes: number): bigint {
    const at = BigInt(this.#numBytes)
    this.#numBytes += Math.ceil(bytes / ALIGNMENT) * ALIGNMENT
    if (this.#numBytes > this.memory.byteLength) throw new Error('too little memory')
    return at
  }

  pinned(bytes: number): Pinned & { bytes: number } {
    const buffer = new ArrayBuffer(bytes)
    const address = BigInt(1 + this.#pinned.size) << 40n
    this.#pinned.set(address, buffer)
    return { buffer, address, bytes }
  }

  atEnd(destroy: () => void): void {
    this.#ends.push(destroy)
  }

  dispose(): void {
    for (const destroy of this.#ends) destroy()
  }

  /** Adds work to a stream. */
  push(run: () => void, stream = this.stream): void {
    this.#streams.get(stream)!.push({ run })
  }

  copy(to: bigint, from: bigint, bytes: number): void {
    this.push(() => this.#bytes(to, bytes).set(this.#bytes(from, bytes)))
  }

  downloadAsync(to: Pinned, from: bigint, bytes: number, at: number, stream: bigint): void {
    this.push(() => new Uint8Array(to.buffer, at, bytes).set(this.#bytes(from, bytes)), stream)
  }

  uploadAsync(to: bigint, from: Pinned, bytes: number, at: number, stream: bigint): void {
    this.push(() => this.#bytes(to, bytes).set(new Uint8Array(from.buffer, at, bytes)), stream)
  }

  copyAside(
    to: Float32Array | bigint,
    from: Float32Array | bigint,
    bytes: number,
    done: (error: unknown) => void,
  ): void {
    this.#threads.push(() => {
      this.#host(to, bytes).set(this.#host(from, bytes))
      done(null)
    })
  }

  /** Runs one piece of work that may be next; false if there is none. */
  runOne(): boolean {
    const ready = [...this.#streams.values()].filter(([op]) => op && op.isBlocked?.() !== true)
    const choice = this.#pick(ready.length + this.#threads.length)
    if (choice < ready.length) {
      ready[choice]!.shift()!.run()
      return true
    }
    const [run] = this.#threads.splice(choice - ready.length, 1)
    run?.()
    return run !== undefined
  }

  #call(name: string, args: bigint[]): void {
    const [first, second] = args as [bigint, bigint]
    if (name === 'cuEventCreate') {
      const out = first as unknown as BigUint64Array // its first argument
      out[0] = ++this.#numEvents
      this.events.add(this.#numEvents)
    } else if (name === 'cuEventDestroy_v2') this.events.delete(first)
    else if (name === 'cuEventRecord') {
      const count = this.#target(first) + 1
      this.#recorded.set(first, count)
      this.push(() => this.#reached.set(first, count), second)
    } else if (name === 'cuStreamWaitEvent') {
      // Waits for the records so far; a later record does not count.
      const count = this.#target(second)
      const isBlocked = () => !this.#isReached(second, count)
      this.#streams.get(first)!.push({ run: () => {}, isBlocked })
    } else throw new Error(`${name} is not known here`)
  }

  #target(event: bigint): number {
    return this.#recorded.get(event) ?? 0
  }

  #isReached(event: bigint, count: number): boolean {
    return (this.#reached.get(event) ?? 0) >= count
  }

  #bytes(at: bigint, bytes: number): Uint8Array {
    return new Uint8Array(this.memory.buffer, Number(at), bytes)
  }

  #host(memory: Float32Array | bigint, bytes: number): Uint8Array {
    if (typeof memory !== 'bigint') return new Uint8Array(memory.buffer, memory.byteOffset, memory.byteLength)
    for (const [address, buffer] of this.#pinned)
      if (memory >= address && memory < address + BigInt(buffer.byteLength))
        return new Uint8Array(buffer, Number(memory - address), bytes)
    throw new Error('an address of nothing')
  }
}
