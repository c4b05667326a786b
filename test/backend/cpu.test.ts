import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { createBatch } from '../../src/backend/batch.ts'
import { openNative } from '../../src/backend/cpu/context.ts'
import { cpuReport, createCpuBackend, measureMachine } from '../../src/backend/cpu/cpu.ts'
import { libraryPath } from '../../src/backend/cpu/isa.ts'
import { benchOps } from '../../src/bench/ops.ts'
import { LEVELS, normals, randomSource } from './kit.ts'

afterEach(() => vi.unstubAllEnvs())

test.runIf(LEVELS.length > 0)('the bench of products reports what it computed', () => {
  const plan = { types: ['f16', 'i8'], shapes: [[64, 128]], tokens: [1, 3], minSeconds: 0, minBytes: 1 } as const
  const rows = benchOps(() => createCpuBackend({ threads: 1 }), plan)
  expect(rows.map(({ type, tokens, repeats }) => [type, tokens, repeats])).toEqual([
    ['f16', 1, 1],
    ['f16', 3, 1],
    ['i8', 1, 1],
    ['i8', 3, 1],
  ])
  for (const { tokens, operationsPerSecond, secondsPerProduct } of rows)
    expect(operationsPerSecond * secondsPerProduct).toBeCloseTo(2 * 64 * 128 * tokens, 3)
})

test('without a compiler the build warns, says what to install, and succeeds', () => {
  const script = join(import.meta.dirname, '../../scripts/build-native.js')
  const result = spawnSync(process.execPath, [script], {
    env: { ...process.env, CXX: 'no-such-compiler' },
    encoding: 'utf8',
  })
  expect(result.status).toBe(0)
  expect(result.stderr).toContain('apt-get install g++')
})

test('the report names every level and where its library would be', () => {
  const { levels, problem } = cpuReport()
  expect(levels.map(({ level }) => level)).toEqual(['baseline', 'avx2', 'avx512', 'amx'])
  for (const { path, isBuilt } of levels) expect(isBuilt).toBe(existsSync(path))
  expect(problem === null).toBe(LEVELS.length > 0)
})

describe.runIf(LEVELS.length > 0)('choosing a level and threads', () => {
  test('the best level by default, or the requested one', () => {
    expect(cpuReport().chosen).toBe(LEVELS.at(-1))
    vi.stubEnv('SKEIN_ISA', 'baseline')
    vi.stubEnv('SKEIN_THREADS', '3')
    const cpu = createCpuBackend()
    expect(cpu.description).toMatch(/^cpu: baseline.*, 3 threads$/)
    cpu.dispose()
  })

  test('measures the limits of the machine', () => {
    const { readBytesPerSecond, fmaOperationsPerSecond } = measureMachine({ threads: 1 })
    expect(readBytesPerSecond).toBeGreaterThan(1e8)
    expect(readBytesPerSecond).toBeLessThan(1e13)
    expect(fmaOperationsPerSecond).toBeGreaterThan(1e8)
    expect(fmaOperationsPerSecond).toBeLessThan(1e13)
  })

  test('an invalid number of threads is reported with its source', () => {
    expect(() => createCpuBackend({ threads: 0 })).toThrow(/^threads 0 is not a whole number/)
    vi.stubEnv('SKEIN_THREADS', 'all')
    expect(() => createCpuBackend()).toThrow(/^SKEIN_THREADS=all is not a whole number/)
  })

  test('an unavailable level is refused with the available ones', () => {
    expect(() => createCpuBackend({ isa: 'sse9' })).toThrow(/not an ISA level; available: baseline/)
    vi.stubEnv('SKEIN_ISA', 'mmx')
    expect(cpuReport().problem).toMatch(/SKEIN_ISA=mmx/)
    // Refused: backend_unavailable would be answered by the slow reference backend.
    expect(() => createCpuBackend()).toThrow(expect.objectContaining({ code: 'invalid_request' }))
    for (const threads of [0, -1, 1.5, 5000])
      expect(() => createCpuBackend({ isa: 'baseline', threads })).toThrow(/threads/)
  })
})

describe.each(LEVELS)('cpu backend on %s', (isa) => {
  let cpu: Backend
  beforeAll(() => {
    cpu = createCpuBackend({ isa, threads: 2 })
  })
  afterAll(() => cpu.dispose())

  test.each([
    ['exp', 0, Math.exp, -87, 88],
    ['sigmoid', 1, (x: number) => 1 / (1 + Math.exp(-x)), -80, 80],
    ['tanh', 2, Math.tanh, -12, 12],
  ] as const)('%s is right to 1e-6', (_, which, exact, low, high) => {
    const native = openNative(libraryPath(isa))
    const x = Float32Array.from({ length: 100_003 }, (_, i) => low + ((high - low) * i) / 100_002)
    const tiny = Float32Array.of(1e-6, -1e-5, 1e-3, -0.01, 0.624, 0.626, 0)
    x.set(tiny)
    const y = new Float32Array(x.length)
    native.sk_vector_function(which, x, y, x.length)
    let worst = 0
    for (const [i, value] of y.entries()) {
      const wanted = exact(x[i]!)
      worst = Math.max(worst, Math.abs(value - wanted) / Math.max(Math.abs(wanted), 1e-37))
    }
    expect(worst).toBeLessThan(1e-6)
  })

  test('exp, sigmoid and tanh at the limits of their range', () => {
    const native = openNative(libraryPath(isa))
    const inf = Number.POSITIVE_INFINITY
    const x = Float32Array.of(-inf, inf, Number.NaN, -1000, 1000)
    const apply = (which: number) => {
      const y = new Float32Array(5)
      native.sk_vector_function(which, x, y, 5)
      return [...y]
    }
    expect(apply(0)).toEqual([0, inf, Number.NaN, 0, inf])
    expect(apply(1)).toEqual([0, 1, Number.NaN, 0, 1])
    expect(apply(2)).toEqual([-1, 1, Number.NaN, -1, 1])
  })

  test('tensors start at zero, are copied in and out, and can be read in part', () => {
    expect(cpu.readTensor(cpu.tensor([3, 5])).result()).toEqual(new Float32Array(15))
    const values = normals(15, 1)
    const tensor = cpu.tensor([3, 5], values)
    const copy = cpu.readTensor(tensor).result()
    expect(copy).toEqual(values)
    copy.fill(0)
    expect(cpu.readTensor(tensor, 5, 5).result()).toEqual(values.slice(5, 10))
    expect(() => cpu.readTensor(tensor, 14, 2).result()).toThrow(/beyond/)
  })

  test('a source that delivers too few bytes is corrupt', () => {
    const source = { ...randomSource(64, 64, 'f32', 1), readRows: () => new Uint8Array(100) }
    expect(() => cpu.matrix(source, 'f32')).toThrow(/hold 100 bytes, expected 16384/)
    expect(() => cpu.table(source)).toThrow(/hold 100 bytes/)
  })

  test('memory that the system refuses is out_of_memory, and the backend continues', () => {
    expect(() => cpu.tensor([2 ** 46])).toThrow(expect.objectContaining({ code: 'out_of_memory', status: 507 }))
    expect(cpu.readTensor(cpu.tensor([4])).result()).toEqual(new Float32Array(4))
  })

  test('a batch beyond the capacity, or with invalid indices, is refused', () => {
    const capacity = { tokens: 4, rows: 2, logits: 1, samples: 0 }
    const table = cpu.table(randomSource(10, 64, 'f32', 1))
    const norm = { weight: cpu.tensor([64]), bias: cpu.tensor([64]), eps: 1e-5 }
    const states = cpu.statePool({ layers: 1, channels: 64, heads: 1, headSize: 64 }, 2)
    const x = cpu.tensor([4, 64])
    const program = cpu.record(capacity, (ops) => {
      ops.embed(x, table, norm)
      ops.shiftMix([cpu.tensor([4, 64])], x, norm, [cpu.tensor([64])], states, 0, 0)
    })
    const run = (change: (batch: ReturnType<typeof createBatch>) => void) => () => {
      const batch = createBatch(capacity)
      batch.numTokens = 2
      batch.numRows = 2
      batch.starts.set([0, 1, 2])
      batch.slots.set([0, 1])
      change(batch)
      program.run(batch)
    }
    expect(run(() => {})).not.toThrow()
    expect(run((batch) => batch.tokens.fill(10))).toThrow(/token id/)
    expect(run((batch) => batch.slots.fill(1))).toThrow(/same slot/)
    expect(run((batch) => batch.slots.set([0, 2]))).toThrow(/slot out of range/)
    expect(run((batch) => batch.starts.set([0, 2, 1]))).toThrow(/starts/)
    expect(
      run((batch) => {
        batch.numTokens = 5
      }),
    ).toThrow(/over capacity/)
    expect(
      run((batch) => {
        batch.numLogits = 1
        batch.logitRows[0] = 2
      }),
    ).toThrow(/logit row/)
  })

  test('operands too small for the capacity are refused when recorded', () => {
    const capacity = { tokens: 4, rows: 1, logits: 1, samples: 0 }
    const weight = cpu.matrix(randomSource(64, 64, 'f32', 1), 'f32')
    const job = { y: cpu.tensor([4, 64]), x: cpu.tensor([3, 64]), weight }
    expect(() => cpu.record(capacity, (ops) => ops.linear([job]))).toThrow(/256 numbers/)
  })

  test('a backend is refused after dispose, and so is its program', () => {
    const backend = createCpuBackend({ isa, threads: 2 })
    const x = backend.tensor([2, 64])
    const table = backend.table(randomSource(4, 64, 'f32', 1))
    const norm = { weight: backend.tensor([64]), bias: backend.tensor([64]), eps: 1 }
    const capacity = { tokens: 2, rows: 1, logits: 0, samples: 0 }
    const program = backend.record(capacity, (ops) => ops.embed(x, table, norm))
    backend.dispose()
    backend.dispose()
    expect(() => program.run(createBatch(capacity))).toThrow(/after dispose/)
    expect(() => backend.readTensor(x).result()).toThrow(/after dispose/)
    program.dispose()
  })
})
