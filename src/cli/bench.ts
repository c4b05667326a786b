/** `skein bench`: the speed of the engine, of a vocabulary and of a GPU by itself; the others are in files of their own. */
import { cpus } from 'node:os'
import { defineCommand } from 'citty'
import { measureMachine } from '../backend/cpu/cpu.ts'
import { Gemm } from '../backend/cuda/gemm.ts'
import { cudaReport } from '../backend/cuda/report.ts'
import { type DeviceSpeed, measureSpeed } from '../backend/cuda/speed.ts'
import {
  type BenchPlan,
  type BenchRow,
  benchEngine,
  type MachineLimits,
  rooflineSeconds,
} from '../bench/engine.ts'
import { RANDOM_MODEL_SIZES } from '../bench/random-model.ts'
import { benchServed } from '../bench/served.ts'
import { benchTokenizer, type TokenizerBench } from '../bench/tokenizer.ts'
import { openCudaDevice } from '../device-choice.ts'
import type { EngineClient } from '../engine/client.ts'
import { SkeinError } from '../errors.ts'
import { clientOver, type EngineChoice, loadRunner, loadTokenizer, modelPath } from '../load.ts'
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
import { randomModel, sizeArg } from './random-model.ts'

/** Beyond this the tokens of a second do not rise any more. */
const MAX_STEP_TOKENS = 4096

const engine = defineCommand({
  meta: { name: 'engine', description: 'Decode and prefill speed of a model, without HTTP' },
  args: {
    ...modelArgs,
    size: sizeArg,
    decode: { type: 'string', default: '1,8,32', description: 'Rows of each decode case' },
    prefill: {
      type: 'string',
      default: '1x512',
      description: 'PROMPTSxTOKENS of each prefill case',
    },
    'step-tokens': {
      type: 'string',
      description: 'Token budget of one step (default 512; on a GPU the largest case, up to 4096)',
    },
    repeats: { type: 'string', default: '20', description: 'Fewest repeats of a case' },
    seconds: { type: 'string', default: '2', description: 'Shortest time of a case' },
    json: { type: 'boolean', description: 'One JSON object' },
  },
  async run({ args }) {
    const size = oneOf(args, 'size', RANDOM_MODEL_SIZES)
    const choice = engineChoice(size ? { ...args, model: randomModel(size) } : args)
    const plan: BenchPlan = {
      decode: integers(args, 'decode'),
      prefill: prefillCases(text(args, 'prefill')),
      minRepeats: integer(args, 'repeats', 1, 100_000) ?? 20,
      minSeconds: number(args, 'seconds', 0, 3600) ?? 2,
    }
    const before = measureLimits(choice)
    const runner = loadRunner(benchChoice(choice, plan, before), progressBar('loading'))
    const client = clientOver(runner)
    try {
      const rows = benchEngine(runner, plan)
      const served = await servedRates(client, rows, plan)
      const limits = higher(before, measureLimits(choice))
      const found = { model: runner.info, stepTokens: runner.maxTokens, limits, rows, served }
      if (args.json) printJson({ machine: cpus()[0]?.model, ...found })
      else printRows(found)
    } finally {
      await client.close()
    }
  },
})

/** As many slots as the widest case has rows, and steps that hold the longest where a GPU makes that cheap. */
function benchChoice(choice: EngineChoice, { decode, prefill }: BenchPlan, limits: Limits) {
  const slots = Math.max(1, ...decode, ...prefill.map(({ prompts }) => prompts))
  const longest = Math.max(0, ...prefill.map(({ prompts, tokens }) => prompts * tokens))
  const maxTokens = limits?.device === 'cuda' ? Math.min(MAX_STEP_TOKENS, longest) : undefined
  return { ...choice, slots, maxTokens: choice.maxTokens ?? (maxTokens || undefined) }
}

/** Tokens a second of each decode case through the engine's loop, over about as long as the case itself ran. */
async function servedRates(
  client: EngineClient,
  rows: readonly BenchRow[],
  { minRepeats, minSeconds }: BenchPlan,
) {
  const rates: number[] = []
  for (const { kind, batch, step } of rows) {
    if (kind !== 'decode') continue
    const steps = Math.ceil((1000 * minSeconds) / step.milliseconds)
    rates.push(await benchServed(client, batch, Math.max(minRepeats, steps)))
  }
  return rates
}

type Limits = (MachineLimits & { readonly device: 'cpu' | 'cuda' }) | null

/** Null where nothing measures them: on several devices, and on the reference. */
function measureLimits({ device = 'auto', ppDevices, threads }: EngineChoice): Limits {
  if (ppDevices !== undefined || device === 'reference') return null
  const isCuda = device.startsWith('cuda') || (device === 'auto' && hasUsableCuda())
  if (!isCuda) {
    const { readBytesPerSecond, fmaOperationsPerSecond } = measureMachine(
      threads === undefined ? {} : { threads },
    )
    const limits = {
      bytesPerSecond: readBytesPerSecond,
      operationsPerSecond: fmaOperationsPerSecond,
    }
    return { device: 'cpu', ...limits }
  }
  const found = openCudaDevice(device === 'auto' ? 'cuda' : device)
  try {
    const products = new Gemm(found)
    const { copyBytesPerSecond, matrixFlopsPerSecond } = measureSpeed(found, products)
    products.dispose()
    const limits = { bytesPerSecond: copyBytesPerSecond, operationsPerSecond: matrixFlopsPerSecond }
    return { device: 'cuda', ...limits }
  } finally {
    found.dispose()
  }
}

function hasUsableCuda(): boolean {
  const { hasCard, problems } = cudaReport()
  return hasCard && problems.length === 0
}

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
function higher(a: Limits, b: Limits): Limits {
  if (!a || !b) return null
  return {
    device: a.device,
    bytesPerSecond: Math.max(a.bytesPerSecond, b.bytesPerSecond),
    operationsPerSecond: Math.max(a.operationsPerSecond, b.operationsPerSecond),
  }
}

interface Found {
  readonly model: ModelInfo
  readonly stepTokens: number
  readonly limits: Limits
  readonly rows: readonly BenchRow[]
  /** Of the decode cases. */
  readonly served: readonly number[]
}

function printRows({ model, stepTokens, limits, rows, served }: Found): void {
  const { architecture, numParameters, weightType, weightBytes, device } = model
  process.stdout.write(
    `${architecture} ${formatCount(numParameters)} parameters, ${weightType}, ${formatBytes(weightBytes)}; ${device}\n`,
  )
  if (limits) process.stdout.write(`this machine now: ${describeLimits(limits)}\n`)
  const share = (row: BenchRow) => {
    if (!limits) return []
    const least = rooflineSeconds(model, row, stepTokens, limits)
    return [row.forward, row.step].map(
      ({ milliseconds }) => `${((100_000 * least) / milliseconds).toFixed(0)} %`,
    )
  }
  printTable([
    [
      ...['case', 'forward ms', 'tokens/s', 'step ms', 'tokens/s', 'ms 25 %', 'ms 75 %', 'repeats'],
      ...['served tokens/s', ...(limits ? ['forward of limit', 'step of limit'] : [])],
    ],
    ...rows.map((row, i) => {
      const { kind, batch, tokens, forward, step } = row
      return [
        kind === 'decode' ? `decode ${batch}` : `prefill ${batch}x${tokens}`,
        ...[forward, step].flatMap(({ milliseconds, tokensPerSecond }) => [
          milliseconds.toFixed(3),
          tokensPerSecond.toFixed(1),
        ]),
        step.lowMilliseconds.toFixed(3),
        step.highMilliseconds.toFixed(3),
        String(step.repeats),
        served[i]?.toFixed(1) ?? '',
        ...share(row),
      ]
    }),
  ])
}

function describeLimits({ device, bytesPerSecond, operationsPerSecond }: NonNullable<Limits>) {
  const [gigabytes, tera] = [bytesPerSecond / 1e9, operationsPerSecond / 1e12]
  return device === 'cuda'
    ? `copies ${gigabytes.toFixed(0)} GB/s read and written, multiplies ${tera.toFixed(0)} TFLOP/s in f16`
    : `reads ${gigabytes.toFixed(1)} GB/s, multiplies ${(1000 * tera).toFixed(0)} GFLOP/s in f32`
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
    if (args.json) printJson(result)
    else printTokenizer(result)
  },
})

function printTokenizer(result: TokenizerBench): void {
  const { megabytesPerSecond, tokensPerSecond, bytesPerToken } = result
  process.stdout.write(`${result.machine}, Node ${result.node}\n`)
  const million = (tokensPerSecond / 1e6).toFixed(1)
  printTable([
    ['encode', `${megabytesPerSecond.toFixed(1)} MB/s, ${million}M tokens/s`],
    ['a token', `${bytesPerToken.toFixed(2)} bytes`],
    ['a short prompt', `${result.promptMicroseconds.toFixed(2)} µs`],
    ['decode', `${result.decodeMegabytesPerSecond.toFixed(1)} MB/s`],
  ])
}

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
