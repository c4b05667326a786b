import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { type CudaOptions, createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { Gemm } from '../../src/backend/cuda/gemm.ts'
import type { Way } from '../../src/backend/cuda/one-row-plan.ts'
import { CudaProgram } from '../../src/backend/cuda/program.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { ModelRunner } from '../../src/model/model-runner.ts'
import { loadRwkv7 } from '../../src/model/rwkv7.ts'
import { rmsRatio } from '../backend/kit.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { someTokens } from '../helpers/runner.ts'
import { describeCuda } from './kit.ts'

/**
 * Widths of released models and two that leave warps without columns; ranks that fill no unit; more active rows of
 * ffn.value than there is room for at once.
 */
const MODELS = [
  { layers: 3, channels: 192, ranks: { w: 32, a: 64, v: 32, g: 96 } },
  { layers: 2, channels: 320, ffn: 12296, ranks: { w: 32, a: 32, v: 32, g: 64 } },
  { layers: 2, channels: 768, ranks: { w: 64, a: 64, v: 32, g: 128 } },
  { layers: 2, channels: 2560, ffn: 2568, ranks: { w: 96, a: 96, v: 64, g: 320 } },
  { layers: 1, channels: 4096, ffn: 4104, ranks: { w: 128, a: 128, v: 96, g: 480 } },
] as const

const TOKENS = someTokens(12, 5)

/** Logits after each of the tokens, fed one at a time, and the state at the end. */
function feed(backend: Backend, path: string) {
  const checkpoint = openCheckpoint(path)
  const model = loadRwkv7(checkpoint, backend, {})
  checkpoint.close()
  const runner = new ModelRunner(model, backend, { numSlots: 3, maxTokens: 16, fingerprint: '' })
  runner.clearSlot(1)
  const logits = Array.from(TOKENS, (_, i) => {
    const tokens = TOKENS.subarray(i, i + 1)
    const [row] = runner.step([{ slot: 1, tokens, samples: [], allLogits: true }])
    return Float32Array.from(row!.logits!)
  })
  const state = runner.readState(1)
  runner.dispose()
  return { logits, state }
}

/** A backend whose programs read in that way, whatever the width. */
function backendOf(way: Way, options: CudaOptions): Backend {
  const backend = createCudaBackend(options)
  const { device } = backend
  const gemm = new Gemm(device)
  return {
    ...backend,
    record: (capacity, build) =>
      new CudaProgram(device, gemm, capacity, build, options.graphs ?? true, () => way),
    dispose() {
      gemm.dispose()
      backend.dispose()
    },
  }
}

const RUNS = MODELS.flatMap((shape) =>
  (['warps', 'feed'] as const).map((way) => ({ way, shape, channels: shape.channels })),
)

describeCuda('one row through all layers at once', () => {
  test.each(RUNS)('$channels channels by $way', { timeout: 120_000 }, ({ way, shape }) => {
    const folder = mkdtempSync(join(tmpdir(), 'skein-'))
    const path = writeRandomRwkv7(join(folder, 'one.pth'), { ...shape, dtype: 'bf16' })
    const expected = feed(createReferenceBackend(), path)
    for (const options of [{}, { wkv: 'f16' }, { graphs: false }] satisfies CudaOptions[]) {
      const actual = feed(backendOf(way, options), path)
      const what = JSON.stringify(options)
      const tolerance = 'wkv' in options ? 1e-2 : 3e-3
      for (const [i, logits] of actual.logits.entries())
        expect(rmsRatio(logits, expected.logits[i]!), `${what} token ${i}`).toBeLessThan(tolerance)
      expect(rmsRatio(actual.state.wkv, expected.state.wkv), what).toBeLessThan(tolerance)
      expect(rmsRatio(actual.state.shift, expected.state.shift), what).toBeLessThan(tolerance)
    }
  })
})
