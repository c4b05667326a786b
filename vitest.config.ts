import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'
import { IS_SLOW } from './test/helpers/slow.ts'
import { RunReporter } from './test/reporter.ts'

/**
 * A process of its own: for vi.mock, for a GPU that is made up, and for who imports files of tests, which must not have been
 * imported there before.
 */
const ALONE = [
  'test/model/best-device.test.ts',
  'test/model/load.test.ts',
  'test/unit/webgpu-ready.test.ts',
  'test/cluster/engine-stores.test.ts',
]
/** They have longer timeouts: a software GPU is slow, and the engine's run many random cases, above all beside other tests. */
const DEVICES = 'test/{backend,engine,model}/**/*.test.ts'
/** One file after another in the same processes: what one has loaded and compiled is there for the next. */
const shared = { isolate: false, exclude: ALONE }

export default defineConfig({
  test: {
    globalSetup: 'test/run-folder.ts',
    setupFiles: 'test/equal-bytes.ts',
    // A test is given it by its options, a file by a line of its head: // @module-tag night
    tags: [{ name: 'night', description: 'what a commit does not wait for: runs with SKEIN_SLOW=1', skip: !IS_SLOW }],
    projects: [
      { extends: true, test: { name: 'alone', include: ALONE } },
      {
        extends: true,
        test: { ...shared, name: 'devices', include: [DEVICES], testTimeout: 300_000, hookTimeout: 300_000 },
      },
      {
        extends: true,
        test: { ...shared, name: 'together', include: ['test/**/*.test.ts'], exclude: [...ALONE, DEVICES] },
      },
    ],
    // Vitest leaves a core to itself; of two it would use one. Most files of test/e2e wait for other processes, so three run.
    maxWorkers: Math.max(3, availableParallelism() - 1),
    // Most tests of test/e2e and test/api are about several processes that share the machine with everything else. One that
    // fails there once in thousands should not hide what the others say, so it is tried again; the reporter names it at the
    // end, because a second try is a defect of the test or of the server, to be mended and not to be got used to.
    retry: 1,
    reporters: ['default', new RunReporter()],
    testTimeout: 60_000,
    hookTimeout: 120_000,
    // What a busy machine takes longer for is right as well: the end of a process, and conditions that are waited for.
    teardownTimeout: 60_000,
    expect: { poll: { timeout: 10_000 } },
    env: {
      // Freed slots are filled with NaN.
      SKEIN_DEBUG: '1',
      // Kernels of two files at once would wait for each other's threads; tests of threads ask for theirs by number.
      SKEIN_THREADS: process.env.SKEIN_THREADS ?? '1',
    },
  },
})
