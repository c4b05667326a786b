/**
 * Measures `linear` alone, by weight type, shape and number of tokens, for comparison with the machine's memory and
 * arithmetic rates. Weights of a case exceed the caches, as in a model. It knows no model and no device.
 */
import type { Backend } from '../backend/backend.ts'
import { createBatch } from '../backend/batch.ts'
import type { MatrixSource, WeightType } from '../backend/weight-types.ts'

interface OpsPlan {
  readonly types: readonly WeightType[]
  readonly shapes: readonly (readonly [rows: number, columns: number])[]
  readonly tokens: readonly number[]
  /** Minimum seconds of a case. */
  readonly minSeconds: number
  /** Minimum bytes of weights that one run of a case reads. */
  readonly minBytes: number
}

export interface OpsRow {
  readonly type: WeightType
  readonly rows: number
  readonly columns: number
  readonly tokens: number
  /** Time of the best run. */
  readonly secondsPerProduct: number
  readonly weightBytesPerSecond: number
  /** A multiply-add counts as two. */
  readonly operationsPerSecond: number
  readonly repeats: number
}

/** The products of a 0.4B model, from one row to a prefill. */
export const DEFAULT_OPS_PLAN: OpsPlan = {
  types: ['f32', 'f16', 'bf16', 'i8', 'q4', 'nf4'],
  shapes: [
    [1024, 1024],
    [4096, 1024],
    [1024, 4096],
    [65_536, 1024],
  ],
  tokens: [1, 8, 32, 512],
  minSeconds: 0.5,
  minBytes: 200e6,
}

/** Runs every case of the plan; `onRow` is called as each ends. The best repeat counts; the others were disturbed. */
export function benchOps(
  createBackend: () => Backend,
  plan: OpsPlan,
  onRow: (row: OpsRow) => void = () => {},
): OpsRow[] {
  const results: OpsRow[] = []
  for (const type of plan.types) {
    for (const [rows, columns] of plan.shapes) {
      // Each case has its own backend, so that its weights are freed when it ends.
      const backend = createBackend()
      try {
        for (const row of benchShape(backend, plan, type, rows, columns)) {
          results.push(row)
          onRow(row)
        }
      } finally {
        backend.dispose()
      }
    }
  }
  return results
}

function* benchShape(backend: Backend, plan: OpsPlan, type: WeightType, rows: number, columns: number) {
  const maxTokens = Math.max(...plan.tokens)
  const source = patternSource(rows, columns)
  const first = backend.matrix(source, type)
  const weights = [first]
  while (weights.length * first.bytes < plan.minBytes) weights.push(backend.matrix(source, type))
  const x = backend.tensor(
    [maxTokens, columns],
    Float32Array.from({ length: maxTokens * columns }, (_, i) => Math.sin(i)),
  )
  const y = backend.tensor([maxTokens, rows])
  const capacity = { tokens: maxTokens, rows: 1, logits: 0, samples: 0 }
  const program = backend.record(capacity, (ops) => {
    for (const weight of weights) ops.linear([{ y, x, weight }])
  })
  const batch = createBatch(capacity)
  batch.numRows = 1
  for (const tokens of plan.tokens) {
    batch.numTokens = tokens
    batch.starts[1] = tokens
    const { best, repeats } = measure(() => program.run(batch), plan.minSeconds)
    const secondsPerProduct = best / weights.length
    yield {
      type,
      rows,
      columns,
      tokens,
      secondsPerProduct,
      weightBytesPerSecond: first.bytes / secondsPerProduct,
      operationsPerSecond: (2 * rows * columns * tokens) / secondsPerProduct,
      repeats,
    }
  }
  program.dispose()
}

function measure(run: () => void, minSeconds: number): { best: number; repeats: number } {
  run()
  let best = Number.POSITIVE_INFINITY
  let repeats = 0
  const end = performance.now() + 1000 * minSeconds
  do {
    const start = performance.now()
    run()
    best = Math.min(best, (performance.now() - start) / 1000)
    repeats++
  } while (performance.now() < end)
  return { best, repeats }
}

/** bf16 weights of ordinary size and both signs; their values do not affect the speed. */
function patternSource(rows: number, columns: number): MatrixSource {
  return {
    name: `bench ${rows}×${columns}`,
    rows,
    columns,
    dtype: 'bf16',
    readRows(start, end) {
      const bits = new Uint16Array((end - start) * columns)
      for (let i = 0; i < bits.length; i++) bits[i] = 0x3c00 | ((i * 40_503) & 0x83ff)
      return new Uint8Array(bits.buffer)
    },
  }
}
