/**
 * The functions of cuBLASLt that Skein calls, each checked, and the one descriptor set that a product needs. Knows
 * nothing of which algorithm is best.
 */
import { SkeinError } from '../../../errors.ts'
import { type Bound, bindAll, openLibrary, type Pointer } from '../../ffi.ts'
import { describeMissing, findLibrary } from '../driver/libraries.ts'
import type { Cut } from './tiles.ts'

const I = 'int32'
const S = 'uint64'
const P = 'pointer'

const SIGNATURES = {
  cublasLtCreate: [I, [P]],
  cublasLtDestroy: [I, [P]],
  cublasLtGetVersion: [S, []],
  cublasLtGetStatusName: ['string', [I]],
  cublasLtGetStatusString: ['string', [I]],
  cublasLtMatmulDescCreate: [I, [P, I, I]],
  cublasLtMatmulDescDestroy: [I, [P]],
  cublasLtMatmulDescSetAttribute: [I, [P, I, P, S]],
  cublasLtMatrixLayoutCreate: [I, [P, I, S, S, 'int64']],
  cublasLtMatrixLayoutDestroy: [I, [P]],
  cublasLtMatrixLayoutSetAttribute: [I, [P, I, P, S]],
  cublasLtMatmulPreferenceCreate: [I, [P]],
  cublasLtMatmulPreferenceDestroy: [I, [P]],
  cublasLtMatmulPreferenceSetAttribute: [I, [P, I, P, S]],
  cublasLtMatmulAlgoGetHeuristic: [I, [P, P, P, P, P, P, P, I, P, P]],
  cublasLtMatmulAlgoConfigGetAttribute: [I, [P, I, P, S, P]],
  cublasLtMatmulAlgoCheck: [I, [P, P, P, P, P, P, P, P]],
  cublasLtMatmul: [I, [P, P, P, P, P, P, P, P, P, P, P, P, P, P, S, P]],
} as const

type Functions = Bound<typeof SIGNATURES>

/** sizeof cublasLtMatmulAlgo_t; opaque, and good for the same library version on the same GPU. */
export const ALGORITHM_BYTES = 64
/** cublasLtMatmulHeuristicResult_t: algorithm, workspace bytes at 64, status at 72, waves at 76, 16 bytes reserved. */
const RESULT_BYTES = 96

/** cudaDataType; fp8 is e4m3. */
const DATA_TYPE = { f32: 0, f16: 2, fp8: 28 } as const
/** CUBLAS_COMPUTE_32F */
const COMPUTE_F32 = 68
const TRANSPOSE = 1
/** cublasLtMatmulDescAttributes_t */
const DESC = {
  transposeA: 3,
  scaleOfA: 17,
  scaleOfB: 18,
  fastAccumulation: 25,
  scaleModeOfA: 31,
  scaleModeOfB: 32,
} as const
/** cublasLtMatmulMatrixScale_t: an f32 for each row of A, and for each column of B. */
const SCALE_ROWS = 3
/** cublasLtMatrixLayoutAttribute_t */
const LAYOUT = { columns: 3, batchCount: 5, batchStride: 6 } as const
/** cublasLtMatmulPreferenceAttributes_t; the alignments of A, B, C and D follow one another. */
const PREFERENCE = { workspaceBytes: 1, reductionSchemes: 3, alignmentA: 5 } as const
/** cublasLtMatmulAlgoConfigAttributes_t */
const CONFIG = { tile: 1, splits: 2 } as const
/** Split-K sums in f32 through the workspace only: never in half precision, never in an order that changes. */
const REDUCE_IN_F32 = 2

export interface ProductShape {
  /** Rows of W = columns of y. */
  readonly m: number
  /** Rows of x = tokens. */
  readonly n: number
  readonly k: number
  readonly batch: number
  /** Of w and x. */
  readonly inType: 'f16' | 'fp8'
  readonly outType: 'f16' | 'f32'
  /** Whether each row of w and of x comes with a scale. */
  readonly isScaled: boolean
  /** Elements from one row of y to the next; those of w and x are packed. */
  readonly ldy: number
  /** Elements from one matrix of the batch to the next. */
  readonly strideW: number
  readonly strideX: number
  readonly strideY: number
  /** A power of two that divides every address, in bytes. */
  readonly alignment: number
}

export interface Algorithm {
  readonly code: Uint8Array
  readonly workspaceBytes: number
}

export class CublasLt {
  readonly path: string
  readonly version: number
  readonly #functions: Functions
  readonly #handle: Pointer
  #isDisposed = false

  constructor(driverMajor: number) {
    const search = findLibrary('cublasLt', driverMajor)
    if (search.found === null)
      throw new SkeinError('backend_unavailable', describeMissing('cublasLt', driverMajor, search))
    this.path = search.found.path
    this.#functions = bindAll(openLibrary(this.path), SIGNATURES)
    this.version = this.#functions.cublasLtGetVersion()
    this.#handle = this.#create('cublasLtCreate')
  }

  /** Descriptors of y = x·Wᵀ in cuBLAS's column-major view: A = W (transposed), B = x, C = D = y. */
  product(shape: ProductShape): Product {
    const description = this.#create('cublasLtMatmulDescCreate', COMPUTE_F32, DATA_TYPE.f32)
    this.#setDescription(description, DESC.transposeA, TRANSPOSE)
    const { m, n, k, batch, ldy, inType, outType } = shape
    if (inType === 'fp8') this.#describeFp8(description, shape.isScaled)
    return new Product(this.#functions, this.#handle, shape, {
      description,
      w: this.#layout(DATA_TYPE[inType], k, m, k, batch, shape.strideW),
      x: this.#layout(DATA_TYPE[inType], k, n, k, batch, shape.strideX),
      y: this.#layout(DATA_TYPE[outType], m, n, ldy, batch, shape.strideY),
    })
  }

  /** How an algorithm cuts a product. */
  cutOf(code: Uint8Array): Cut {
    return { tile: this.#configOf(code, CONFIG.tile), splits: this.#configOf(code, CONFIG.splits) }
  }

  #configOf(code: Uint8Array, attribute: number): number {
    const value = new Int32Array(1)
    const written = new BigUint64Array(1)
    const get = this.#functions.cublasLtMatmulAlgoConfigGetAttribute
    check(this.#functions, get(code, attribute, value, 4, written), 'an algorithm')
    return value[0]!
  }

  #describeFp8(description: Pointer, isScaled: boolean): void {
    // The tensor cores' own sums, of some 14 bits: far finer than the inputs.
    const set = this.#functions.cublasLtMatmulDescSetAttribute
    const status = set(description, DESC.fastAccumulation, Uint8Array.of(1), 1)
    check(this.#functions, status, 'a description')
    if (!isScaled) return
    this.#setDescription(description, DESC.scaleModeOfA, SCALE_ROWS)
    this.#setDescription(description, DESC.scaleModeOfB, SCALE_ROWS)
  }

  #layout(type: number, rows: number, columns: number, ld: number, batch: number, stride: number) {
    const layout = this.#create('cublasLtMatrixLayoutCreate', type, rows, columns, ld)
    if (batch === 1) return layout
    const set = this.#functions.cublasLtMatrixLayoutSetAttribute
    const count = set(layout, LAYOUT.batchCount, Int32Array.of(batch), 4)
    check(this.#functions, count, 'batch count of a matrix')
    const offset = set(layout, LAYOUT.batchStride, BigUint64Array.of(BigInt(stride)), 8)
    check(this.#functions, offset, 'batch stride of a matrix')
    return layout
  }

  #setDescription(description: Pointer, attribute: number, value: number): void {
    const set = this.#functions.cublasLtMatmulDescSetAttribute
    check(this.#functions, set(description, attribute, Int32Array.of(value), 4), 'a description')
  }

  /** Calls one of the functions that make an object and hand it out through their first argument. */
  #create(
    name: 'cublasLtCreate' | 'cublasLtMatmulDescCreate' | 'cublasLtMatrixLayoutCreate',
    ...args: number[]
  ): Pointer {
    const out = new BigUint64Array(1)
    // The three take numbers after the address of the result; their callers above give as many as each needs.
    const create = this.#functions[name] as (...args: unknown[]) => number
    check(this.#functions, create(out, ...args), name)
    return out[0]!
  }

  dispose(): void {
    if (this.#isDisposed) return
    this.#isDisposed = true
    check(this.#functions, this.#functions.cublasLtDestroy(this.#handle), 'cublasLtDestroy')
  }
}

interface Handles {
  readonly description: Pointer
  readonly w: Pointer
  readonly x: Pointer
  readonly y: Pointer
}

/** One product's descriptors; its number of tokens may be changed. */
export class Product {
  readonly #functions: Functions
  readonly #handle: Pointer
  readonly #shape: ProductShape
  readonly #of: Handles
  readonly #alpha = Float32Array.of(1)
  readonly #beta = new Float32Array(1)
  #n: number

  constructor(functions: Functions, handle: Pointer, shape: ProductShape, handles: Handles) {
    this.#functions = functions
    this.#handle = handle
    this.#shape = shape
    this.#of = handles
    this.#n = shape.n
  }

  setTokens(n: number): void {
    if (n === this.#n) return
    const set = this.#functions.cublasLtMatrixLayoutSetAttribute
    const columns = BigUint64Array.of(BigInt(n))
    check(this.#functions, set(this.#of.x, LAYOUT.columns, columns, 8), 'columns of x')
    check(this.#functions, set(this.#of.y, LAYOUT.columns, columns, 8), 'columns of y')
    this.#n = n
  }

  /** Where the scales are; before candidates are asked for and before a run, of products that have them. */
  setScales(w: Pointer, x: Pointer): void {
    const set = this.#functions.cublasLtMatmulDescSetAttribute
    for (const [attribute, address] of [
      [DESC.scaleOfA, w],
      [DESC.scaleOfB, x],
    ] as const)
      check(this.#functions, set(this.#of.description, attribute, BigUint64Array.of(address), 8), 'scales')
  }

  /** Up to `most` algorithms that the library thinks good, best first. */
  candidates(most: number, workspaceBytes: number): Algorithm[] {
    const functions = this.#functions
    const out = new BigUint64Array(1)
    check(functions, functions.cublasLtMatmulPreferenceCreate(out), 'preference')
    const preference = out[0]!
    const results = new Uint8Array(most * RESULT_BYTES)
    const count = new Int32Array(1)
    try {
      this.#prefer(preference, workspaceBytes)
      const { description, w, x, y } = this.#of
      const status = functions.cublasLtMatmulAlgoGetHeuristic(
        this.#handle,
        description,
        w,
        x,
        y,
        y,
        preference,
        most,
        results,
        count,
      )
      if (status !== 0) throw this.#failure(status, 'no algorithm for')
    } finally {
      functions.cublasLtMatmulPreferenceDestroy(preference)
    }
    return Array.from({ length: count[0]! }, (_, i) => readResult(results, i)).filter((algorithm) => algorithm !== null)
  }

  #prefer(preference: Pointer, workspaceBytes: number): void {
    const set = this.#functions.cublasLtMatmulPreferenceSetAttribute
    const workspace = BigUint64Array.of(BigInt(workspaceBytes))
    const what = 'a preference'
    check(this.#functions, set(preference, PREFERENCE.workspaceBytes, workspace, 8), what)
    const schemes = Int32Array.of(REDUCE_IN_F32)
    check(this.#functions, set(preference, PREFERENCE.reductionSchemes, schemes, 4), what)
    const alignment = Int32Array.of(this.#shape.alignment)
    for (let i = 0; i < 4; i++) check(this.#functions, set(preference, PREFERENCE.alignmentA + i, alignment, 4), what)
  }

  /** The algorithm with the workspace it needs for the present number of tokens, or null when it cannot do it. */
  verify(code: Uint8Array): Algorithm | null {
    const result = new Uint8Array(RESULT_BYTES)
    const { description, w, x, y } = this.#of
    const status = this.#functions.cublasLtMatmulAlgoCheck(this.#handle, description, w, x, y, y, code, result)
    if (status !== 0) return null
    const checked = readResult(result, 0)
    return checked === null ? null : { code, workspaceBytes: checked.workspaceBytes }
  }

  run(
    stream: Pointer,
    algorithm: Algorithm,
    operands: { readonly w: Pointer; readonly x: Pointer; readonly y: Pointer },
    beta: 0 | 1,
    workspace: Pointer,
  ): void {
    this.#beta[0] = beta
    const { description, w, x, y } = this.#of
    const status = this.#functions.cublasLtMatmul(
      this.#handle,
      description,
      this.#alpha,
      operands.w,
      w,
      operands.x,
      x,
      this.#beta,
      operands.y,
      y,
      operands.y,
      y,
      algorithm.code,
      workspace,
      algorithm.workspaceBytes,
      stream,
    )
    if (status !== 0) throw this.#failure(status, 'running')
  }

  #failure(status: number, what: string): SkeinError {
    const { m, k, batch, inType, outType } = this.#shape
    const shape = `${inType} ${batch > 1 ? `${batch} × ` : ''}[${this.#n}, ${k}] · [${m}, ${k}]ᵀ → ${outType}`
    return failure(this.#functions, status, `${what} ${shape}`)
  }

  dispose(): void {
    const { description, w, x, y } = this.#of
    for (const layout of [w, x, y])
      check(this.#functions, this.#functions.cublasLtMatrixLayoutDestroy(layout), 'layout')
    check(this.#functions, this.#functions.cublasLtMatmulDescDestroy(description), 'description')
  }
}

function readResult(results: Uint8Array, index: number): Algorithm | null {
  const at = index * RESULT_BYTES
  const view = new DataView(results.buffer, results.byteOffset + at, RESULT_BYTES)
  if (view.getInt32(72, true) !== 0) return null
  return { code: results.slice(at, at + ALGORITHM_BYTES), workspaceBytes: Number(view.getBigUint64(64, true)) }
}

function check(functions: Functions, status: number, what: string): void {
  if (status !== 0) throw failure(functions, status, what)
}

function failure(functions: Functions, status: number, what: string): SkeinError {
  const name = functions.cublasLtGetStatusName(status)
  const text = functions.cublasLtGetStatusString(status)
  return new SkeinError('internal', `cuBLASLt, ${what}: ${name} (${text})`)
}
