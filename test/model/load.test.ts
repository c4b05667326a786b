import { join } from 'node:path'
import { afterEach, expect, test, vi } from 'vitest'
import { type ErrorCode, SkeinError } from '../../src/errors.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { loadEngine } from '../../src/host/load.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { StoreOptions } from '../../src/state/store/store-thread.ts'
import { openDirectStore } from '../helpers/direct-store.ts'
import { tinyModel } from '../helpers/runner.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { writeTunedState } from '../helpers/tuned-state.ts'

// The real one uses threads, which need built code.
const { closed } = vi.hoisted(() => ({ closed: vi.fn() }))
vi.mock('../../src/state/store/store-thread.ts', () => ({
  openStore: async ({ dataFolder, identity }: StoreOptions) => {
    const store = openDirectStore(dataFolder, identity)
    const close = () => {
      closed()
      return store.close()
    }
    return { ...store, close }
  },
}))

afterEach(() => vi.restoreAllMocks())

const vocab = DEMO_MODEL.replace(/pth$/, 'vocab.txt')
const dispose = () => vi.spyOn(ModelRunner.prototype, 'dispose')

test('a vocabulary that does not fit leaves no runner behind', async () => {
  const disposed = dispose()
  const loading = loadEngine({ model: tinyModel(), vocab, device: 'reference', slots: 2 })
  await expect(loading).rejects.toMatchObject({ code: 'unsupported_weights' })
  expect(disposed).toHaveBeenCalledOnce()
})

test.each<[ErrorCode, number]>([
  ['out_of_memory', 1],
  // Nothing of a failed device can be freed.
  ['kernel_failed', 0],
])('a warm-up that ends with %s disposes of the runner %i times', async (code, times) => {
  const disposed = dispose()
  vi.spyOn(ModelRunner.prototype, 'warmUp').mockImplementation(() => {
    throw new SkeinError(code, 'not warm')
  })
  const choice = { model: DEMO_MODEL, device: 'cpu', slots: 2, maxTokens: 64 } as const
  await expect(loadEngine(choice, undefined, {})).rejects.toThrow('not warm')
  expect(disposed).toHaveBeenCalledTimes(times)
})

test('a start state whose name is not allowed leaves no store behind', async () => {
  const dataDir = temporaryFolder()
  const path = join(dataDir, 'state.pth')
  writeTunedState(path, DEMO_MODEL)
  const startStates = [{ name: 'demo@night', path }]
  const loading = loadEngine({ model: DEMO_MODEL, device: 'cpu', slots: 2, dataDir, startStates })
  await expect(loading).rejects.toThrow('cannot name a start state')
  expect(closed).toHaveBeenCalledOnce()
})
