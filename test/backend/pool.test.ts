/** The CPU's thread pool on shared cores: a thread that waits for a core delays only its own item. */
import { spawn } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { expect, test } from 'vitest'
import { createCpuBackend } from '../../src/backend/cpu/cpu.ts'
import { capacityFor, LEVELS, raggedBatch, read } from './kit.ts'

const NUM_COMMANDS = 300
const CHANNELS = 4096
const STEPS = 9

/** Milliseconds of a step of many small commands, the median of a few; every value is checked. */
async function stepMs(threads: number): Promise<number> {
  const cpu = createCpuBackend({ threads })
  const capacity = capacityFor(1)
  const batch = raggedBatch(capacity, [1], [0], 1)
  const full = (value: number) => cpu.tensor([3, CHANNELS], new Float32Array(3 * CHANNELS).fill(value))
  const [x, gate, value] = [full(0), full(1), full(1)]
  const program = cpu.record(capacity, (ops) => {
    for (let i = 0; i < NUM_COMMANDS; i++) ops.gatedAdd(x, gate, value)
  })
  const times: number[] = []
  for (let step = 0; step < STEPS; step++) {
    const start = performance.now()
    program.run(batch)
    times.push(performance.now() - start)
  }
  const sums = await read(cpu, x, 0, CHANNELS)
  expect(new Set(sums)).toEqual(new Set([STEPS * NUM_COMMANDS]))
  program.dispose()
  cpu.dispose()
  return times.toSorted((a, b) => a - b)[Math.floor(STEPS / 2)]!
}

test.runIf(LEVELS.length > 0)('a step on busy cores takes about as long as on one thread', async () => {
  const cores = availableParallelism()
  const others = Array.from({ length: cores }, () => spawn(process.execPath, ['-e', 'for (;;);'], { stdio: 'ignore' }))
  try {
    const [alone, together] = [await stepMs(1), await stepMs(Math.max(2, cores))]
    // A barrier of all threads after each command would take a time slice each: a hundred times as long.
    expect(together).toBeLessThan(10 * alone + 50)
  } finally {
    for (const other of others) other.kill('SIGKILL')
  }
})
