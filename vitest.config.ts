import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    globalSetup: 'test/run-folder.ts',
    include: ['test/**/*.test.ts'],
    testTimeout: 60_000,
    hookTimeout: 120_000,
    // Freed slots are filled with NaN.
    env: { SKEIN_DEBUG: '1' },
  },
})
