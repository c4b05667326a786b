/**
 * Matrix products y[n, m] = x[n, k] · W[m, k]ᵀ (row-major, f16 or e4m3 in, f32 sums) through cuBLASLt. For each shape and bucket
 * of tokens the library's candidates are timed on the device once, and the winner is kept on disk. Knows no model.
 */
import { assert, SkeinError } from '../../../errors.ts'
import type { CudaDevice } from '../device/device.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { type Algorithm, CublasLt, type Product, type ProductShape } from './cublaslt.ts'
import { Offers } from './offers.ts'
import { PlanCache } from './plans.ts'
import { tune } from './tune.ts'

export interface GemmShape {
  /** Rows of W: outputs. */
  readonly m: number
  /** Rows of x: tokens. */
  readonly n: number
  readonly k: number
  /** Of W and x: f16 unless given; fp8 is e4m3. */
  readonly inType?: 'f16' | 'fp8'
  readonly outType: 'f16' | 'f32'
  /** 1 adds into y, the residual. */
  readonly beta?: 0 | 1
  /** Independent products of one launch, their operands a constant distance apart. */
  readonly batch?: number
  /** Elements from one operand of the batch to the next, the same for every number of tokens; 0 shares an operand. */
  readonly strides?: { readonly w: number; readonly x: number; readonly y: number }
  /** Elements from one row of y to the next; packed when absent. */
  readonly ldy?: number
}

export interface GemmCall extends GemmShape {
  /** inType [m, k] */
  readonly w: DevicePointer
  /** inType [n, k] */
  readonly x: DevicePointer
  /** outType [n, m] */
  readonly y: DevicePointer
  /** f32 [m] and [n]: what the rows of W and of x are multiplied with, of fp8 only and where scalesRows() says so. */
  readonly scales?: { readonly w: DevicePointer; readonly x: DevicePointer }
}

/** The smallest numbers of tokens that plans are tuned for, and steps padded to. */
const SMALL_BUCKETS = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
/** Just above 320 tokens, which are two waves of tiles on an H100 or H200, and what is below the next bucket by as much. */
const SHORT_OF_WAVES = [320, 336] as const
/** Split-K of the widest decode product: 8 partial sums of 4096 × 512 in f32. */
const WORKSPACE_BYTES = 64 << 20
const CANDIDATES = 24
/** Of those that it offers for other products, on the only capability whose tiles are known. */
const OTHERS = 48
const OTHERS_MAJOR = 9
const MAX_ALIGNMENT = 256n
/** Of a process. Products for which that is not enough take the library's first choice, and the next process tunes them. */
const MOST_TUNING_MS = 5000

/**
 * The bucket of a number of tokens. Fine enough that what is padded costs little: a plan's tiles suit its own number and
 * no other, so that products of 352 tokens with the plan of 384 take as long as those of 384.
 */
export function bucketOf(n: number): number {
  const small = SMALL_BUCKETS.find((size) => size >= n)
  if (small !== undefined) return small
  if (n > SHORT_OF_WAVES[0] && n <= SHORT_OF_WAVES[1]) return SHORT_OF_WAVES[1]
  const grain = n <= 512 ? 32 : n <= 1024 ? 64 : 128
  return grain * Math.ceil(n / grain)
}

interface ReadyPlan {
  /** What an error that surfaces later calls it. */
  readonly label: string
  readonly product: Product
  /** Of each number of tokens this plan has met: the tuned algorithm, or the library's own where that cannot do it. */
  readonly algorithms: Map<number, Algorithm>
  readonly tuned: Algorithm
}

export class Gemm {
  readonly #device: CudaDevice
  /** Null where the driver's kind has none: for a device that is not here nothing is multiplied. */
  readonly #own: { readonly library: CublasLt; readonly cache: PlanCache; readonly offers: Offers } | null
  readonly #plans = new Map<string, ReadyPlan>()
  readonly #scalesRows = new Map<GemmShape['outType'], boolean>()
  /** Of a device that is not here: gets each product that is prepared, by its plan's key. */
  readonly #asked: Map<string, GemmCall> | null
  #workspace: DevicePointer | null = null
  #tuningMs = 0

  constructor(device: CudaDevice, asked: Map<string, GemmCall> | null = null) {
    this.#device = device
    this.#asked = asked
    device.enter()
    if (!device.kind.hasCublasLt) {
      this.#own = null
      return
    }
    const library = new CublasLt(Math.floor(device.info.driverVersion / 1000))
    const { name: gpu, info } = device
    const machine = { gpu, driver: info.driverRelease, cublasLt: library.version }
    this.#own = { library, cache: new PlanCache(machine), offers: new Offers(library, WORKSPACE_BYTES) }
  }

  get #library(): CublasLt {
    if (this.#own === null)
      throw new SkeinError(
        'backend_unavailable',
        `no library multiplies matrices of many tokens on ${this.#device.name} (driver ${this.#device.kind.name})`,
      )
    return this.#own.library
  }

  /** Whether somebody wants to know of every product that would be prepared. */
  get isListing(): boolean {
    return this.#asked !== null
  }

  /** "cuBLASLt 13.1.0 (…/libcublasLt.so.13)" */
  get description(): string {
    const { version, path } = this.#library
    const [major, minor] = [Math.floor(version / 10_000), Math.floor(version / 100) % 100]
    return `cuBLASLt ${major}.${minor}.${version % 100} (${path})`
  }

  /**
   * Puts a product on the stream. The first call of a shape and bucket tunes it, which waits for the device; while a
   * graph is captured the shape must have been run or prepared before.
   */
  run(call: GemmCall): void {
    if (this.#device.isAbsent) return
    const { n, w, x, y, beta = 0 } = call
    const plan = this.#plan(call)
    plan.product.setTokens(n)
    const algorithm = plan.algorithms.get(n) ?? this.#fit(plan, n)
    const device = this.#device
    if (call.scales) plan.product.setScales(call.scales.w, call.scales.x)
    device.driver.lastLaunch = plan.label
    try {
      plan.product.run(device.stream, algorithm, { w, x, y }, beta, this.#workspaceAddress())
    } catch (error) {
      // cuBLASLt has one status for every failure of a launch; where the device itself is at fault, it says so here.
      if (!device.isCapturing) device.synchronize()
      throw error
    }
  }

  /** Makes the plan of a call without running it: y stays as it is. */
  prepare(call: GemmCall): void {
    if (this.#own === null) {
      this.#asked?.set(keyOf(call).key, call)
      return
    }
    const plan = this.#plan(call)
    plan.product.setTokens(call.n)
    if (!plan.algorithms.has(call.n)) this.#fit(plan, call.n)
    this.#workspaceAddress()
  }

  /**
   * Tunes those of `asked` that have no plan, within the time that tuning has. They come from a device that is not here, so
   * their operands have no addresses yet. `onBegin` hears how many there are, if there are any.
   */
  tuneAhead(asked: ReadonlyMap<string, GemmCall>, onBegin: (numProducts: number) => void): void {
    const fresh = [...asked].filter(([key, { scales }]) => !scales && this.#own?.cache.get(key) === undefined)
    if (fresh.length > 0) onBegin(fresh.length)
    for (const [key, call] of fresh) {
      if (this.#tuningMs > MOST_TUNING_MS) return
      const { shape } = keyOf(call)
      const product = this.#library.product(shape)
      try {
        this.#tune(product, shape, { ...call, w: null }, key)
      } finally {
        product.dispose()
      }
    }
  }

  /** Whether the library multiplies the rows of fp8 operands with scales: it does on some chips and versions. */
  scalesRows(outType: GemmShape['outType']): boolean {
    const known = this.#scalesRows.get(outType)
    if (known !== undefined) return known
    const found = this.#own === null || this.#probeScales(outType)
    this.#scalesRows.set(outType, found)
    return found
  }

  #probeScales(outType: GemmShape['outType']): boolean {
    const address = this.#workspaceAddress()
    const call = { m: 256, n: 64, k: 256, inType: 'fp8', outType } as const
    const scales = { w: address, x: address }
    const shape = productShape({ ...call, scales }, Number(MAX_ALIGNMENT))
    try {
      const product = this.#library.product(shape)
      try {
        product.setScales(address, address)
        return product.candidates(1, WORKSPACE_BYTES).length > 0
      } finally {
        product.dispose()
      }
    } catch (error) {
      // A refusal of the library; anything else will be met again.
      if (error instanceof SkeinError) return false
      throw error
    }
  }

  #plan(call: GemmCall): ReadyPlan {
    const { shape, key } = keyOf(call)
    // Descriptors are for one distance between operands; the winner is the same for all.
    const place = `${key} ${shape.strideW},${shape.strideX},${shape.strideY}`
    const known = this.#plans.get(place)
    if (known !== undefined) return known
    assert(!this.#device.isCapturing, `product ${key} captured before it was run or prepared`)
    const product = this.#library.product(shape)
    if (call.scales) product.setScales(call.scales.w, call.scales.x)
    const tuned = this.#recall(product, key) ?? this.#tune(product, shape, call, key)
    const label = `product ${key}`
    const plan = { label, product, algorithms: new Map([[shape.n, tuned]]), tuned }
    this.#plans.set(place, plan)
    return plan
  }

  /** The winner of an earlier process, where the library still accepts it. */
  #recall(product: Product, key: string): Algorithm | null {
    const code = this.#own?.cache.get(key)
    const algorithm = code === undefined ? null : product.verify(code)
    return algorithm !== null && algorithm.workspaceBytes <= WORKSPACE_BYTES ? algorithm : null
  }

  #tune(
    product: Product,
    shape: ProductShape,
    call: Pick<GemmCall, 'beta'> & { readonly w: DevicePointer | null },
    key: string,
  ): Algorithm {
    const known = this.#candidates(product)
    if (this.#tuningMs > MOST_TUNING_MS) return known[0]!
    const began = performance.now()
    const candidates = alternate(known, this.#others(product, shape, known))
    const timed = tune(this.#device, shape, candidates, call.w, (algorithm, operands) =>
      product.run(this.#device.stream, algorithm, operands, call.beta ?? 0, this.#workspaceAddress()),
    )
    this.#tuningMs += performance.now() - began
    // Without memory to try them in, the library's own first choice serves, and is not kept.
    if (timed === null) return candidates[0]!
    this.#own?.cache.set(key, { algorithm: timed.algorithm.code, microseconds: timed.microseconds })
    return timed.algorithm
  }

  #candidates(product: Product): Algorithm[] {
    const candidates = product.candidates(CANDIDATES, WORKSPACE_BYTES)
    assert(candidates.length > 0, 'cuBLASLt offers an algorithm for every product')
    return candidates
  }

  /** Algorithms that fit the product beside those `known`: the library does not think of them. */
  #others(product: Product, shape: ProductShape, known: readonly Algorithm[]): Algorithm[] {
    const hasTiles = this.#device.computeCapability[0] === OTHERS_MAJOR && shape.inType === 'f16'
    if (this.#own === null || !hasTiles) return []
    return this.#own.offers.fitting(shape, this.#device.numSms, OTHERS).flatMap((code) => {
      if (known.some((one) => Buffer.compare(one.code, code) === 0)) return []
      const algorithm = product.verify(code)
      return algorithm !== null && algorithm.workspaceBytes <= WORKSPACE_BYTES ? [algorithm] : []
    })
  }

  /** The tuned algorithm for another number of tokens of its bucket. */
  #fit(plan: ReadyPlan, n: number): Algorithm {
    const verified = plan.product.verify(plan.tuned.code)
    const fits = verified !== null && verified.workspaceBytes <= WORKSPACE_BYTES
    const algorithm = fits ? verified : this.#candidates(plan.product)[0]!
    plan.algorithms.set(n, algorithm)
    return algorithm
  }

  #workspaceAddress(): DevicePointer {
    this.#workspace ??= this.#device.alloc(WORKSPACE_BYTES)
    return this.#workspace
  }

  dispose(): void {
    for (const { product } of this.#plans.values()) product.dispose()
    this.#plans.clear()
    if (this.#workspace !== null) this.#device.free(this.#workspace)
    this.#workspace = null
    this.#own?.library.dispose()
  }
}

/** One of each in turn, as long as both last. */
function alternate<T>(one: readonly T[], other: readonly T[]): T[] {
  return Array.from({ length: Math.max(one.length, other.length) }, (_, i) => [one[i], other[i]])
    .flat()
    .filter((item): item is T => item !== undefined)
}

/** With every default filled in. */
export function productShape(shape: GemmShape & Pick<Partial<GemmCall>, 'scales'>, alignment: number): ProductShape {
  const { m, n, k, inType = 'f16', outType, batch = 1, ldy = m } = shape
  assert(batch === 1 || shape.strides !== undefined, 'a batch of products needs strides')
  return {
    m,
    n,
    k,
    batch,
    inType,
    outType,
    isScaled: shape.scales !== undefined,
    ldy,
    strideW: shape.strides?.w ?? 0,
    strideX: shape.strides?.x ?? 0,
    strideY: shape.strides?.y ?? 0,
    alignment,
  }
}

/** Of the plan that serves a call. */
function keyOf(call: GemmCall): { readonly shape: ProductShape; readonly key: string } {
  const shape = productShape({ ...call, n: bucketOf(call.n) }, alignmentOf(call))
  return { shape, key: planKey(shape, call.beta ?? 0) }
}

/** The power of two, up to 256, that divides every address. */
function alignmentOf({ w, x, y }: GemmCall): number {
  const bits = w | x | y | MAX_ALIGNMENT
  return Number(bits & -bits)
}

/** What the speed of an algorithm depends on, besides the machine. */
export function planKey(shape: ProductShape, beta: 0 | 1): string {
  const { m, n, k, batch, outType, ldy } = shape
  const packed = ldy === m ? '' : ` ld ${ldy}`
  const batched = batch === 1 ? '' : ` ${batch}x`
  const inputs = shape.inType === 'f16' ? '' : ` ${shape.inType}${shape.isScaled ? ' scaled' : ''}`
  return `${m}x${k} n${n} ${outType} b${beta} a${shape.alignment}${packed}${batched}${inputs}`
}
