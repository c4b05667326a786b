/**
 * Times the candidate algorithms of one matrix product on the device, as they will run: weights not in the cache, x of
 * random numbers in it. Knows nothing of how a candidate is launched.
 */
import { SkeinError } from '../../../errors.ts'
import { countPiece } from '../../../threads/work-done.ts'
import type { CudaDevice } from '../device/device.ts'
import type { DevicePointer } from '../kernel/args.ts'
import type { Algorithm, ProductShape } from './cublaslt.ts'

interface Timed {
  readonly algorithm: Algorithm
  readonly microseconds: number
}

/** Ahead of all, so that the clocks are up. */
const WARM_UP_MICROSECONDS = 3000
const MOST_WARM_UPS = 10
/**
 * Every candidate is launched three times, and the last of these is timed, as long as that may take; then the best of
 * them are timed as often as fits in the time that they may take.
 */
const FIRST_MS = 8
const LEAST_CANDIDATES = 8
const FINALISTS = 8
const FINAL_MICROSECONDS = 4000
const FINAL_REPEATS = [3, 9] as const
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
/** Of copies of the weights. */
const ALIGNMENT = 256

interface Operands {
  readonly w: DevicePointer
  readonly x: DevicePointer
  readonly y: DevicePointer
}

type RunCandidate = (algorithm: Algorithm, operands: Operands) => void

/**
 * The fastest candidate, or null when there is no memory to try them in. The most promising come first. x and y are
 * scratch, and so are the weights where there are none.
 */
export function tune(
  device: CudaDevice,
  shape: ProductShape,
  candidates: readonly Algorithm[],
  weights: DevicePointer | null,
  run: RunCandidate,
): Timed | null {
  const scratch = new Scratch(device)
  try {
    const x = scratch.random(2 * span(shape.batch, shape.strideX, shape.n, shape.k))
    const bytesOut = shape.outType === 'f32' ? 4 : 2
    const y = scratch.zeros(bytesOut * span(shape.batch, shape.strideY, shape.n, shape.ldy))
    const w = weights ?? scratch.random(weightBytes(shape))
    const { launches, once, often } = timerOf(device, shape, scratch, w)
    const launch = (algorithm: Algorithm) => (weights: DevicePointer) => run(algorithm, { w: weights, x, y })
    const one = once(launch(candidates[0]!))
    device.time(() => launch(candidates[0]!)(w), Math.min(MOST_WARM_UPS, Math.ceil(WARM_UP_MICROSECONDS / one)))
    const time = (timing: (run: Launch) => number) => (algorithm: Algorithm) => {
      // All of a step's products may be timed in one turn of the event loop, which a watchdog of a worker watches.
      countPiece()
      return { algorithm, microseconds: timing(launch(algorithm)) }
    }
    const first = asManyAs(FIRST_MS, candidates, time(once)).sort(byTime).slice(0, FINALISTS)
    const repeats = FINAL_MICROSECONDS / (first.length * launches * first[0]!.microseconds)
    const [least, greatest] = FINAL_REPEATS
    const last = time((run) => often(run, Math.min(greatest, Math.max(least, Math.floor(repeats)))))
    return first.map(({ algorithm }) => last(algorithm)).sort(byTime)[0]!
  } catch (error) {
    if (error instanceof SkeinError && error.code === 'out_of_memory') return null
    throw error
  } finally {
    scratch.dispose()
  }
}

/** Times candidates in order, LEAST_CANDIDATES and what the time is enough for. */
function asManyAs(milliseconds: number, candidates: readonly Algorithm[], time: (one: Algorithm) => Timed): Timed[] {
  const end = performance.now() + milliseconds
  const timed: Timed[] = []
  for (const one of candidates) {
    if (timed.length >= LEAST_CANDIDATES && performance.now() > end) break
    timed.push(time(one))
  }
  return timed
}

type Launch = (weights: DevicePointer) => void

/** Microseconds of a product whose weights are not in the cache. */
interface Timer {
  /** Of a repeat of `often`. */
  readonly launches: number
  once(run: Launch): number
  often(run: Launch, repeats: number): number
}

function timerOf(device: CudaDevice, shape: ProductShape, scratch: Scratch, w: DevicePointer): Timer {
  const bytes = weightBytes(shape)
  const { l2Bytes } = device.info
  const round = Math.ceil((ROUND_CACHES * l2Bytes) / bytes)
  if (round > MAX_ROUND) {
    const flushBytes = Math.max(FLUSH_CACHES * l2Bytes, MIN_FLUSH_BYTES)
    const flushed = scratch.zeros(flushBytes)
    const flush = () => device.fill(flushed, 0, flushBytes)
    const often = (run: Launch, repeats: number) => device.time(() => run(w), repeats, flush)
    return { launches: 1, once: (run) => often(run, 1), often }
  }
  const all = [w, ...scratch.copies(round - 1, w, bytes)]
  let turn = 0
  const next = () => all[turn++ % round]!
  return {
    launches: round + 1,
    // What runs before hides the launch.
    once: (run) =>
      device.time(
        () => run(next()),
        1,
        () => run(next()),
      ),
    often: (run, repeats) => {
      const runAll = () => {
        for (const weights of all) run(weights)
      }
      // The last of the round before.
      return device.time(runAll, repeats, () => run(all.at(-1)!)) / round
    },
  }
}

function byTime(a: Timed, b: Timed): number {
  return a.microseconds - b.microseconds
}

function weightBytes({ inType, batch, strideW, m, k }: ProductShape): number {
  return (inType === 'fp8' ? 1 : 2) * span(batch, strideW, m, k)
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

  /** One allocation for all: allocating takes longer than timing. */
  copies(count: number, from: DevicePointer, bytes: number): DevicePointer[] {
    if (count === 0) return []
    const stride = ALIGNMENT * Math.ceil(bytes / ALIGNMENT)
    const first = this.#device.alloc(count * stride)
    this.#pointers.push(first)
    const pointers = Array.from({ length: count }, (_, i) => first + BigInt(i * stride))
    for (const pointer of pointers) this.#device.copy(pointer, from, bytes)
    return pointers
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
