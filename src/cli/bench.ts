/** `skein bench`: speed of the engine and of the tokenizer on this machine; the others are in files of their own. */
import { cpus } from 'node:os'
import { defineCommand } from 'citty'
import { measureMachine } from '../backend/cpu/cpu.ts'
import { Gemm } from '../backend/cuda/gemm.ts'
import { type DeviceSpeed, measureSpeed } from '../backend/cuda/speed.ts'
import { type BenchRow, benchEngine, limitShares, type MachineLimits } from '../bench/engine.ts'
import { RANDOM_MODEL_SIZES } from '../bench/random-model.ts'
import { benchTokenizer } from '../bench/tokenizer.ts'
import { openCudaDevice } from '../device-choice.ts'
import { SkeinError } from '../errors.ts'
import { loadRunner, loadTokenizer, modelPath } from '../load.ts'
import type { ModelInfo } from '../model/runner.ts'
import { Tokenizer } from '../tokenizer/tokenizer.ts'
import {
  deviceChoice,
  engineChoice,
  integer,
  integers,
  modelArgs,
  number,
  oneOf,
  text,
} from './args.ts'
import { formatBytes, formatCount, printJson, printTable, progressBar } from './output.ts'
import { randomModel } from './random-model.ts'

const engine = defineCommand({
  meta: { name: 'engine', description: 'Decode and prefill speed of a model, without HTTP' },
  args: {
    ...modelArgs,
    size: {
      type: 'string',
      description: `Random weights of a released size instead of FILE: ${RANDOM_MODEL_SIZES.join(', ')}`,
    },
    decode: { type: 'string', default: '1,8,32', description: 'Rows of each decode case' },
    prefill: {
      type: 'string',
      default: '1x512',
      description: 'PROMPTSxTOKENS of each prefill case',
    },
    'step-tokens': {
      type: 'string',
      description: 'Token budget of one step (default 512, 2048 on a GPU)',
    },
    repeats: { type: 'string', default: '20', description: 'Fewest repeats of a case' },
    seconds: { type: 'string', default: '2', description: 'Shortest time of a case' },
    json: { type: 'boolean', description: 'One JSON object' },
  },
  run({ args }) {
    const decode = integers(args, 'decode')
    const prefill = prefillCases(text(args, 'prefill'))
    const size = oneOf(args, 'size', RANDOM_MODEL_SIZES)
    const slots = Math.max(1, ...decode, ...prefill.map(({ prompts }) => prompts))
    const choice = engineChoice(size ? { ...args, model: randomModel(size) } : args)
    const runner = loadRunner({ ...choice, slots }, progressBar('loading'))
    try {
      const plan = {
        decode,
        prefill,
        minRepeats: integer(args, 'repeats', 1, 100_000) ?? 20,
        minSeconds: number(args, 'seconds', 0, 3600) ?? 2,
      }
      const limit = () =>
        runner.info.device.startsWith('cpu') ? measureMachine(threadsOf(choice)) : null
      const before = limit()
      const rows = benchEngine(runner, plan)
      const limits = higher(before, limit())
      if (args.json) printJson({ machine: cpus()[0]?.model, limits, model: runner.info, rows })
      else printRows(runner.info, rows, limits)
    } finally {
      runner.dispose()
    }
  },
})

function prefillCases(given = ''): { prompts: number; tokens: number }[] {
  return given
    .split(',')
    .filter((part) => part !== '')
    .map((part) => {
      const match = /^(\d+)x(\d+)$/.exec(part)
      if (!match || Number(match[1]) < 1 || Number(match[2]) < 1)
        throw new SkeinError(
          'invalid_request',
          `--prefill takes cases like 1x512,8x128, not "${part}"`,
        )
      return { prompts: Number(match[1]), tokens: Number(match[2]) }
    })
}

/** Measured before and after the cases; the better of the two, since a neighbour may have disturbed one. */
function higher(a: MachineLimits | null, b: MachineLimits | null): MachineLimits | null {
  if (!a || !b) return null
  return {
    readBytesPerSecond: Math.max(a.readBytesPerSecond, b.readBytesPerSecond),
    fmaOperationsPerSecond: Math.max(a.fmaOperationsPerSecond, b.fmaOperationsPerSecond),
  }
}

function threadsOf({ threads }: { readonly threads?: number | undefined }) {
  return threads === undefined ? {} : { threads }
}

function printRows(info: ModelInfo, rows: readonly BenchRow[], limits: MachineLimits | null): void {
  process.stdout.write(
    `${info.architecture} ${formatCount(info.numParameters)} parameters, ${info.weightType}, ${formatBytes(info.weightBytes)}; ${info.device}\n`,
  )
  if (limits)
    process.stdout.write(
      `this machine now: reads ${(limits.readBytesPerSecond / 1e9).toFixed(1)} GB/s, multiplies ${(limits.fmaOperationsPerSecond / 1e9).toFixed(0)} GFLOP/s in f32\n`,
    )
  const shares = (row: BenchRow) => {
    if (!limits) return []
    const { read, fma } = limitShares(info, row, limits)
    return [read, fma].map((share) => `${(100 * share).toFixed(0)} %`)
  }
  printTable([
    [
      'case',
      'tokens/s',
      'ms',
      'ms 25 %',
      'ms 75 %',
      'repeats',
      ...(limits ? ['of read', 'of f32'] : []),
    ],
    ...rows.map((row) => [
      row.kind === 'decode' ? `decode ${row.batch}` : `prefill ${row.batch}x${row.tokens}`,
      row.tokensPerSecond.toFixed(1),
      row.milliseconds.toFixed(2),
      row.lowMilliseconds.toFixed(2),
      row.highMilliseconds.toFixed(2),
      String(row.repeats),
      ...shares(row),
    ]),
  ])
}

const tokenizer = defineCommand({
  meta: { name: 'tokenizer', description: 'Encoding speed of a vocabulary' },
  args: {
    vocab: { type: 'string', description: "Vocabulary file (default: the demo model's)" },
    json: { type: 'boolean', description: 'One JSON object' },
  },
  run({ args }) {
    const vocab = text(args, 'vocab')
    const result = benchTokenizer(
      vocab ? Tokenizer.fromFile(vocab) : loadTokenizer({ model: modelPath(undefined) }),
    )
    printJson(result)
  },
})

const device = defineCommand({
  meta: {
    name: 'device',
    description: "What a GPU can do at best: the limits of the engine's figures",
  },
  args: {
    device: { type: 'string', default: 'cuda', description: 'cuda, cuda:N or cuda:UUID' },
    json: { type: 'boolean', description: 'One JSON object' },
  },
  run({ args }) {
    const found = openCudaDevice(deviceChoice(args) ?? 'cuda')
    try {
      const products = new Gemm(found)
      const speed = measureSpeed(found, products)
      if (args.json) printJson({ device: found.info, products: products.description, ...speed })
      else printSpeed(`${found.description}, ${products.description}`, speed)
      products.dispose()
    } finally {
      found.dispose()
    }
  },
})

function printSpeed(name: string, speed: DeviceSpeed): void {
  process.stdout.write(`${name}\n`)
  printTable([
    ['copy', `${(speed.copyBytesPerSecond / 1e12).toFixed(2)} TB/s read and written`],
    ['matrix', `${(speed.matrixFlopsPerSecond / 1e12).toFixed(0)} TFLOP/s in f16`],
    ['upload', `${(speed.uploadBytesPerSecond / 1e9).toFixed(1)} GB/s`],
    ['launch', `${speed.launchMicroseconds.toFixed(2)} µs`],
    ['in a graph', `${speed.graphKernelMicroseconds.toFixed(2)} µs a kernel`],
  ])
}

export const bench = defineCommand({
  meta: {
    name: 'bench',
    description: 'Measure this machine or a server: engine, ops, quality, device, tokenizer, serve',
  },
  subCommands: {
    engine,
    ops: async () => (await import('./bench-ops.ts')).benchOpsCommand,
    quality: async () => (await import('./bench-quality.ts')).benchQuality,
    device,
    tokenizer,
    serve: async () => (await import('./bench-serve.ts')).benchServeCommand,
  },
})
