/**
 * Times the candidate algorithms of one matrix product on the device, as they will run: weights not in the cache, x of
 * random numbers in it. Knows nothing of how a candidate is launched.
 */
import { SkeinError } from '../../../errors.ts'
import type { CudaDevice } from '../device/device.ts'
import type { DevicePointer } from '../kernel/args.ts'
import type { Algorithm, ProductShape } from './cublaslt.ts'

export interface Timed {
  readonly algorithm: Algorithm
  readonly microseconds: number
}

/** Ahead of all, so that the clocks are up. Then every candidate is timed so often, the best of them once more. */
const WARM_UP_REPEATS = 10
const FIRST_REPEATS = 2
const FINAL_REPEATS = 9
const FINALISTS = 5
/** Reading this many caches' worth of weights leaves nothing of the first in the cache. */
const ROUND_CACHES = 2
/**
 * Where that takes more copies of the weights, the cache is emptied by writing instead. What was written has to leave it
 * while the candidate runs, which makes the best and the others more alike.
 */
const MAX_ROUND = 8
const FLUSH_CACHES = 3
const MIN_FLUSH_BYTES = 32 << 20
const RANDOM_BYTES = 1 << 20

interface Operands {
  readonly w: DevicePointer
  readonly x: DevicePointer
  readonly y: DevicePointer
}

type RunCandidate = (algorithm: Algorithm, operands: Operands) => void

/** The fastest candidate, or null when there is no memory to try them in. x and y are scratch; the weights are real. */
export function tune(
  device: CudaDevice,
  shape: ProductShape,
  candidates: readonly Algorithm[],
  w: DevicePointer,
  run: RunCandidate,
): Timed | null {
  const scratch = new Scratch(device)
  try {
    const x = scratch.random(2 * span(shape.batch, shape.strideX, shape.n, shape.k))
    const bytesOut = shape.outType === 'f32' ? 4 : 2
    const y = scratch.zeros(bytesOut * span(shape.batch, shape.strideY, shape.n, shape.ldy))
    const timeOf = timer(device, shape, scratch, w)
    const time = (algorithm: Algorithm, repeats: number): Timed => ({
      algorithm,
      microseconds: timeOf((weights) => run(algorithm, { w: weights, x, y }), repeats),
    })
    if (candidates[0] !== undefined) time(candidates[0], WARM_UP_REPEATS)
    const first = candidates.map((algorithm) => time(algorithm, FIRST_REPEATS)).sort(byTime)
    const last = first.slice(0, FINALISTS).map((one) => time(one.algorithm, FINAL_REPEATS))
    return last.sort(byTime)[0] ?? null
  } catch (error) {
    if (error instanceof SkeinError && error.code === 'out_of_memory') return null
    throw error
  } finally {
    scratch.dispose()
  }
}

/** Microseconds of a product whose weights are not in the cache. */
function timer(device: CudaDevice, shape: ProductShape, scratch: Scratch, w: DevicePointer) {
  const bytes = (shape.inType === 'fp8' ? 1 : 2) * span(shape.batch, shape.strideW, shape.m, shape.k)
  const { l2Bytes } = device.info
  const round = Math.ceil((ROUND_CACHES * l2Bytes) / bytes)
  if (round > MAX_ROUND) {
    const flushBytes = Math.max(FLUSH_CACHES * l2Bytes, MIN_FLUSH_BYTES)
    const flushed = scratch.zeros(flushBytes)
    const flush = () => device.fill(flushed, 0, flushBytes)
    return (run: (weights: DevicePointer) => void, repeats: number) => device.time(() => run(w), repeats, flush)
  }
  const all = [w, ...Array.from({ length: round - 1 }, () => scratch.copy(w, bytes))]
  return (run: (weights: DevicePointer) => void, repeats: number) => {
    const runAll = () => {
      for (const weights of all) run(weights)
    }
    // The last of the round before hides the launch.
    return device.time(runAll, repeats, () => run(all.at(-1)!)) / round
  }
}

function byTime(a: Timed, b: Timed): number {
  return a.microseconds - b.microseconds
}

/** Elements from the first of the first matrix to the last of the last. */
function span(batch: number, stride: number, rows: number, ld: number): number {
  return (batch - 1) * stride + rows * ld
}

class Scratch {
  readonly #device: CudaDevice
  readonly #pointers: DevicePointer[] = []

  constructor(device: CudaDevice) {
    this.#device = device
  }

  zeros(bytes: number): DevicePointer {
    const pointer = this.#device.alloc(bytes)
    this.#pointers.push(pointer)
    this.#device.fill(pointer, 0, bytes)
    return pointer
  }

  copy(from: DevicePointer, bytes: number): DevicePointer {
    const pointer = this.#device.alloc(bytes)
    this.#pointers.push(pointer)
    this.#device.copy(pointer, from, bytes)
    return pointer
  }

  /** f16 numbers in ±[0.5, 1): products of zeros would run faster than real ones. */
  random(bytes: number): DevicePointer {
    const pointer = this.zeros(bytes)
    randoms ??= randomHalves(RANDOM_BYTES)
    const block = randoms.subarray(0, Math.floor(bytes / 2))
    this.#device.upload(pointer, block)
    for (let done = block.byteLength; done < bytes; done *= 2)
      this.#device.copy(pointer + BigInt(done), pointer, Math.min(done, bytes - done))
    return pointer
  }

  dispose(): void {
    for (const pointer of this.#pointers) this.#device.free(pointer)
  }
}

/** Making them takes as long as timing two products. */
let randoms: Uint16Array | undefined

function randomHalves(bytes: number): Uint16Array {
  let state = 1
  return Uint16Array.from({ length: Math.floor(bytes / 2) }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    // Sign and most bits of the fraction at random, exponent −1; taken as e4m3, neither byte is a NaN.
    return ((state >>> 16) & 0x83bf) | 0x3800
  })
}
