/**
 * The `cpu` backend: the ops of backend.ts as C++ kernels (kernels/cpu) on a thread pool of its own. One backend is
 * one native context; it is used from one thread and owns everything it hands out.
 */
import { assert } from '../../errors.ts'
import type { Backend, Flight, Tensor } from '../backend.ts'
import { doneFlight } from '../flight.ts'
import { HOST_GUESSING } from '../host-guessing.ts'
import { CpuContext, check, openNative } from './context.ts'
import { chooseLevel, chooseThreads, type IsaLevel, libraryPath } from './isa.ts'
import { CpuProgram } from './program.ts'
import { CpuMatrix, CpuPenaltyPool, CpuStatePool, CpuTable, CpuTensor } from './resources.ts'

export { cpuReport } from './isa.ts'

export interface CpuOptions {
  /** Threads; one per core unless SKEIN_THREADS says otherwise. */
  readonly threads?: number
  /**
   * 'baseline', 'avx2', 'avx512' or 'amx', on arm64 'baseline', 'dotprod' or 'i8mm'; the best one available unless SKEIN_ISA
   * says otherwise.
   */
  readonly isa?: string
}

export function createCpuBackend(options: CpuOptions = {}): Backend {
  const level = chooseLevel(options.isa)
  const threads = chooseThreads(options.threads)
  const context = new CpuContext(level, threads)
  return {
    name: 'cpu',
    description: describeCpu(level, threads),
    guessing: HOST_GUESSING,
    drawsLater: false,
    tensor: (shape, values) => new CpuTensor(context, shape, values),
    activation: (shape, values) => new CpuTensor(context, shape, values),
    readTensor: (tensor, start, count) => readTensor(context, tensor, start, count),
    writeTensor: (tensor, values) => writeTensor(context, tensor, values),
    matrix: (source, type) => new CpuMatrix(context, source, type),
    table: (source) => new CpuTable(context, source),
    hostTable: (source) => new CpuTable(context, source),
    statePool: (shape, numSlots) => new CpuStatePool(context, shape, numSlots),
    penaltyPool: (vocabSize, numSlots) => new CpuPenaltyPool(context, vocabSize, numSlots),
    record: (capacity, build) => new CpuProgram(context, capacity, build),
    dispose: () => context.dispose(),
  }
}

interface MachineLimits {
  readonly readBytesPerSecond: number
  /** f32 fused multiply-adds in registers, two operations each. */
  readonly fmaOperationsPerSecond: number
}

/** The memory bandwidth and arithmetic rate of the cores, as a bound for kernels. Best of a few runs. */
export function measureMachine(options: CpuOptions = {}): MachineLimits {
  const context = new CpuContext(chooseLevel(options.isa), chooseThreads(options.threads))
  const { native, handle } = context
  const bytes = 2 ** 29
  const limits = {
    readBytesPerSecond: bytes / native.sk_bench_read(handle, bytes, 5),
    fmaOperationsPerSecond: native.sk_bench_fma(handle, 5),
  }
  context.dispose()
  return limits
}

/** "cpu: avx512 (vnni, bf16), 2 threads" */
function describeCpu(level: IsaLevel, threads: number): string {
  const neon = process.arch === 'arm64' ? ' (neon)' : ''
  const intel = { avx2: ' (fma, f16c)', avx512: ' (vnni, bf16)', amx: ' (tiles, avx512)' }
  const features = { baseline: neon, ...intel, dotprod: ' (neon)', i8mm: ' (neon, dotprod)' }[level]
  return `cpu: ${level}${features}, ${threads} ${threads === 1 ? 'thread' : 'threads'}`
}

function writeTensor(context: CpuContext, tensor: Tensor, values: Float32Array): void {
  assert(tensor instanceof CpuTensor, 'a tensor of another backend')
  assert(values.length <= tensor.count, 'writeTensor beyond its tensor')
  context.native.sk_tensor_write(tensor.pointer, 0, values, values.length)
}

function readTensor(context: CpuContext, tensor: Tensor, start = 0, count?: number): Flight<Float32Array> {
  assert(tensor instanceof CpuTensor, 'a tensor of another backend')
  const values = new Float32Array(count ?? tensor.count - start)
  assert(start >= 0 && start + values.length <= tensor.count, 'readTensor beyond its tensor')
  context.native.sk_tensor_read(tensor.pointer, start, values, values.length)
  return doneFlight(values)
}

/** What engine/answer/logprobs.ts computes, to the last few digits of a double; the same bits at every level. */
export function nativeScores(isa?: string) {
  const native = openNative(libraryPath(chooseLevel(isa)))
  return (logits: Float32Array, vocabSize: number, tokens: Int32Array, k: number) => {
    const rows = tokens.length
    assert(logits.length >= rows * vocabSize, `${logits.length} logits of ${rows} rows of ${vocabSize}`)
    const logprobs = new Float64Array(rows)
    const topIds = new Int32Array(rows * k)
    const topLogprobs = new Float64Array(rows * k)
    const status = native.sk_logprobs(logits, rows, vocabSize, tokens, k, logprobs, topIds, topLogprobs)
    check(native, status, 'logprobs')
    return { logprobs, topIds, topLogprobs }
  }
}
