/**
 * Algorithms that cuBLASLt offers for products of other sizes, of which those whose tiles fit are tried as well (tiles.ts).
 * Knows no plans.
 */
import { assert, SkeinError } from '../../../errors.ts'
import type { Algorithm, CublasLt, Product, ProductShape } from './cublaslt.ts'
import { type Cut, fitOf } from './tiles.ts'

/** Widths [m, k, batch] and tokens for which the library offers, together, some 420 algorithms of one output type. */
const WIDTHS = [
  [4096, 4096, 1],
  [4096, 4096, 3],
  [16384, 4096, 1],
  [4096, 16384, 1],
  [8192, 2048, 1],
  [2048, 8192, 1],
  [65536, 4096, 1],
] as const
const TOKENS = [64, 96, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 336, 352, 384, 432, 448, 480] as const
const MANY_TOKENS = [512, 544, 576, 608, 640, 704, 768, 832, 896, 960, 1024, 1152, 1280, 1536, 2048] as const
/** Of each. */
const CANDIDATES = 24

interface Offer extends Cut {
  readonly code: Uint8Array
}

export class Offers {
  readonly #library: CublasLt
  readonly #workspaceBytes: number
  readonly #byType = new Map<ProductShape['outType'], readonly Offer[]>()

  constructor(library: CublasLt, workspaceBytes: number) {
    this.#library = library
    this.#workspaceBytes = workspaceBytes
  }

  /** The `most` that fit a product of f16 best, best first. */
  fitting(shape: ProductShape, numSms: number, most: number): readonly Uint8Array[] {
    assert(shape.inType === 'f16', `offers for products of ${shape.inType}`)
    const fits = this.#of(shape.outType).map((offer) => ({ code: offer.code, fit: fitOf(offer, shape, numSms) }))
    const sorted = fits.filter(({ fit }) => fit > 0).sort((a, b) => b.fit - a.fit)
    return sorted.slice(0, most).map(({ code }) => code)
  }

  #of(outType: ProductShape['outType']): readonly Offer[] {
    const known = this.#byType.get(outType)
    if (known !== undefined) return known
    const found = this.#ask(outType)
    this.#byType.set(outType, found)
    return found
  }

  #ask(outType: ProductShape['outType']): Offer[] {
    const offers = new Map<string, Offer>()
    for (const [m, k, batch] of WIDTHS) {
      const strides = batch === 1 ? [0, 0, 0] : [m * k, 2048 * k, 2048 * m]
      const [strideW, strideX, strideY] = strides as [number, number, number]
      const types = { inType: 'f16', outType, isScaled: false } as const
      const shape = { m, n: 64, k, batch, ...types, ldy: m, strideW, strideX, strideY, alignment: 256 }
      const product = this.#library.product(shape)
      try {
        for (const n of [...TOKENS, ...MANY_TOKENS]) {
          product.setTokens(n)
          for (const { code } of this.#candidates(product))
            offers.set(Buffer.from(code).toString('base64'), { code, ...this.#library.cutOf(code) })
        }
      } finally {
        product.dispose()
      }
    }
    return [...offers.values()]
  }

  /** None where the library refuses a size: then others do. */
  #candidates(product: Product): Algorithm[] {
    try {
      return product.candidates(CANDIDATES, this.#workspaceBytes)
    } catch (error) {
      if (error instanceof SkeinError) return []
      throw error
    }
  }
}
