/**
 * Rounds weights with the cpu kernels, to be written to a file: the same bytes as reference/quantise.ts, some hundred
 * times as fast. Owns a native context.
 */

import { numScales, valueBytes } from '../quantised.ts'
import type { MatrixSource, QuantisedRows, QuantisedType } from '../weight-types.ts'
import { CpuContext } from './context.ts'
import type { CpuOptions } from './cpu.ts'
import { chooseLevel, chooseThreads } from './isa.ts'
import { TYPES } from './resources.ts'

export class CpuQuantiser {
  readonly #context: CpuContext

  constructor(options: CpuOptions = {}) {
    this.#context = new CpuContext(chooseLevel(options.isa), chooseThreads(options.threads))
  }

  /** Rows [start, end) of a source, rounded. */
  quantise(type: QuantisedType, source: MatrixSource, start: number, end: number): QuantisedRows {
    const { name, columns, dtype } = source
    const rows = end - start
    const values = new Uint8Array(rows * valueBytes(type, columns))
    const scales = new Uint8Array(rows * 2 * numScales(type, columns))
    const { native, handle } = this.#context
    const from = source.readRows(start, end)
    const status = native.sk_quantise(handle, TYPES[type], rows, columns, TYPES[dtype], from, values, scales)
    this.#context.check(status, name)
    return { values, scales }
  }

  dispose(): void {
    this.#context.dispose()
  }
}
