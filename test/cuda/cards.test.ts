/**
 * This GPU within the limits of other cards (docs/dev/cards.md): kernels of their capability, as many multiprocessors, and
 * no more shared memory than a block of them has.
 */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { afterEach, expect, test, vi } from 'vitest'
import { createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { CudaDevice } from '../../src/backend/cuda/device/device.ts'
import { simulated } from '../../src/backend/cuda/driver/cards.ts'
import { FewRowsLayers } from '../../src/backend/cuda/ops/fused-layers.ts'
import type { WeightType } from '../../src/backend/weight-types.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import { loadRwkv7 } from '../../src/model/rwkv7.ts'
import { rmsRatio } from '../backend/kit.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { someTokens } from '../helpers/runner.ts'
import { cardInfo, describeCuda } from './kit.ts'

const WIDE = { layers: 2, channels: 2048, ranks: { w: 96, a: 96, v: 64, g: 256 } }
const WIDEST = { layers: 1, channels: 4096, ffn: 8192, ranks: { w: 128, a: 128, v: 96, g: 480 } }

/** Whose units multiply as this card's do. */
const CARDS = ['a100', '3090', '4090', 'b200', '5090'] as const
/** Rows of a token in a step: one launch on most cards, on some, and on few or none. */
const ROWS = [1, 2, 8]
const STEPS = 5

function modelOf(shape: object): string {
  const folder = mkdtempSync(join(tmpdir(), 'skein-'))
  return writeRandomRwkv7(join(folder, 'card.pth'), { ...shape, dtype: 'bf16' })
}

/** On the card that SKEIN_SIMULATE_CARD names. */
function runOn(card: string, path: string, weightType: WeightType | undefined, run: (runner: ModelRunner) => void) {
  vi.stubEnv('SKEIN_SIMULATE_CARD', card)
  const backend = createCudaBackend()
  const checkpoint = openCheckpoint(path)
  const model = loadRwkv7(checkpoint, backend, { weightType })
  checkpoint.close()
  const runner = new ModelRunner(model, backend, { numSlots: 8, maxTokens: 40, fingerprint: '' })
  run(runner)
  runner.dispose()
  backend.dispose()
  vi.unstubAllEnvs()
}

/** Logits after each step of so many rows, and their states at the end. */
function feed(runner: ModelRunner, numRows: number, length = 1, steps = STEPS) {
  const rows = Array.from({ length: numRows }, (_, i) => someTokens(length * steps, i + 1))
  for (const slot of rows.keys()) runner.clearSlot(slot)
  const logits = Array.from({ length: steps }, (_, step) => {
    const batch = rows.map((tokens, slot) => {
      return { slot, tokens: tokens.subarray(length * step, length * (step + 1)), samples: [], allLogits: true }
    })
    return runner.step(batch).map((row) => Float32Array.from(row.logits!))
  })
  return { logits, states: rows.map((_, slot) => runner.readState(slot).result()) }
}

describeCuda('within the limits of other cards', () => {
  afterEach(() => void vi.restoreAllMocks())

  test.each(
    CARDS.flatMap((card) => [
      { card, type: undefined, channels: 2048, shape: WIDE },
      { card, type: 'q4' as const, channels: 2048, shape: WIDE },
      ...([undefined, 'i8', 'q4', 'fp8'] as const).map((type) => ({ card, type, channels: 4096, shape: WIDEST })),
    ]),
  )(
    '$card: $channels channels of $type have the bits of this card, or nearly',
    { timeout: 300_000 },
    ({ card, type, shape }) => {
      if (type === 'fp8' && (card === 'a100' || card === '3090')) return
      const path = modelOf(shape)
      const takes = vi.spyOn(FewRowsLayers.prototype, 'takes')
      /** Whether a step of so many rows was one launch there. */
      const together = new Map<number, boolean>()
      const there = new Map<number, ReturnType<typeof feed>>()
      let prompt: Float32Array | undefined
      runOn(card, path, type, (runner) => {
        for (const rows of ROWS) {
          there.set(rows, feed(runner, rows))
          together.set(rows, takes.mock.results[takes.mock.calls.findLastIndex(([tokens]) => tokens === rows)]!.value)
        }
        prompt = feed(runner, 1, 40, 1).logits[0]![0]
      })
      expect(together.get(1)).toBe(true)
      // With fewer multiprocessors a block has more columns of ffn.value, whose sums then have another order.
      const hasOrder = simulated(cardInfo(), card).numSms >= 128
      const others: string[] = []
      const compare = (runner: ModelRunner, isOne: boolean) => {
        for (const rows of ROWS.filter((one) => together.get(one) === isOne)) {
          const [mine, here] = [there.get(rows)!, feed(runner, rows)]
          const isSame = isDeepStrictEqual(mine, here)
          if ((hasOrder || !isOne) && !isSame) others.push(`${rows} rows${isOne ? ' in one launch' : ', op by op'}`)
          for (const [i, logits] of mine.logits.flat().entries())
            expect(rmsRatio(logits, here.logits.flat()[i]!)).toBeLessThan(2e-3)
        }
      }
      runOn('', path, type, (runner) => {
        compare(runner, true)
        // Products of many tokens are the library's. With fp8 that rounds their inputs, which this card's tiles do not.
        const tolerance = type === 'fp8' ? 1e-2 : 2e-3
        expect(rmsRatio(prompt!, feed(runner, 1, 40, 1).logits[0]![0]!)).toBeLessThan(tolerance)
      })
      takes.mockReturnValue(false)
      // How many warps share a row of integers depends on the number of multiprocessors.
      const { numSms } = simulated(cardInfo(), card)
      vi.spyOn(CudaDevice.prototype, 'numSms', 'get').mockReturnValue(numSms)
      runOn('', path, type, (runner) => compare(runner, false))
      expect(others).toEqual([])
    },
  )
})
