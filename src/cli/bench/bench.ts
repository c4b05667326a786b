/** `skein bench`: measures the engine, a vocabulary and a GPU alone. The other benches have their own files. */
import { cpus } from 'node:os'
import { measureMachine } from '../../backend/cpu/cpu.ts'
import { Gemm } from '../../backend/cuda/gemm/gemm.ts'
import { hasUsableCuda } from '../../backend/cuda/report.ts'
import { type DeviceSpeed, measureSpeed } from '../../backend/cuda/speed.ts'
import { measureWebgpu } from '../../backend/webgpu/speed.ts'
import { type BenchPlan, type BenchRow, benchEngine, type MachineLimits, rooflineSeconds } from '../../bench/engine.ts'
import { benchGuessed, type GuessRates, ScriptedGuesses } from '../../bench/guessed.ts'
import { benchLoop, type ServedRate } from '../../bench/served.ts'
import { benchTokenizer, type TokenizerBench } from '../../bench/tokenizer.ts'
import type { EngineClient } from '../../engine/client.ts'
import { SkeinError } from '../../errors.ts'
import { modelPath } from '../../host/checkpoints/model-path.ts'
import { loadTokenizer } from '../../host/checkpoints/open-model.ts'
import { adapterChosen, openCudaDevice, prepareDevice } from '../../host/device-choice.ts'
import { clientOver, draftOver, loadDraft, loadRunner, refuseBeside, testedFor } from '../../host/load.ts'
import type { EngineChoice } from '../../host/model-choice.ts'
import type { ModelInfo, Runner } from '../../model/runner.ts'
import { deviceChoice, engineChoice } from '../../settings/engine-choice.ts'
import { integers, list, number, path, text, toggle, whole } from '../../settings/flags.ts'
import { MODEL_FLAGS, MODEL_WORDS, SETTINGS } from '../../settings/table.ts'
import { Tokenizer } from '../../tokenizer/tokenizer.ts'
import { defineCommand, defineCommands } from '../terminal/command.ts'
import { formatBytes, formatCount, printJson, printTable, progressBar } from '../terminal/output.ts'
import { benchOpsCommand } from './ops.ts'
import { benchQuality } from './quality.ts'
import { modelOrSize, randomModel, SIZE_FLAG } from './random-model.ts'
import { benchServeCommand } from './serve.ts'

/** Larger steps do not raise the tokens per second any more. */
const MAX_STEP_TOKENS = 4096

const engine = defineCommand({
  description: 'Decode and prefill speed of a model, without HTTP',
  examples: [['skein bench engine MODEL.pth', 'tokens per second on this machine']],
  words: MODEL_WORDS,
  flags: {
    size: SIZE_FLAG,
    decode: integers('Rows of each decode case', { default: '1,8,32' }),
    mixed: list('ROWS+TOKENS of each mixed case: answers, and prompt tokens in the same steps', { default: '' }),
    prefill: list('PROMPTSxTOKENS of each prefill case', { default: '1x512' }),
    'step-tokens': {
      ...SETTINGS['step-tokens'],
      description: 'Token budget of one step (default 512; on a GPU the largest case, up to 4096)',
    },
    repeats: whole(1, 100_000)('Minimum repeats of a case', { default: '20' }),
    seconds: number(0, 3600)('Minimum seconds of a case', { default: '2' }),
    speculate: {
      ...SETTINGS.speculate,
      default: 'off',
      description: 'With lookup, also measure speculative decoding by the share of right guesses',
    },
    draft: text(
      'Also measure this draft model, or random weights of a size such as 0.1b, by the share of right guesses',
      { hint: 'FILE|SIZE' },
    ),
    json: toggle('One JSON object'),
    ...MODEL_FLAGS,
  },
  async run({ args }) {
    const { size } = args
    const choice = {
      ...engineChoice({ ...args, ...(size ? { model: randomModel(size) } : {}), draft: undefined }),
      draft: args.draft === undefined ? undefined : modelOrSize(args.draft),
    }
    const plan: BenchPlan = {
      decode: args.decode,
      mixed: pairs(args.mixed, '--mixed', '+', '32+256,320+16').map(([rows, tokens]) => ({ rows, tokens })),
      prefill: pairs(args.prefill, '--prefill', 'x', '1x512,8x128').map(([prompts, tokens]) => ({ prompts, tokens })),
      minRepeats: args.repeats,
      minSeconds: args.seconds,
    }
    await prepareDevice(choice, () => testedFor(choice))
    refuseBeside(choice)
    const adapter = adapterChosen(choice)
    const before = await measureLimits(choice, adapter)
    const draft = choice.draft === undefined ? null : loadDraft(choice, choice.draft, {})
    const runner = loadRunner(benchChoice(choice, plan, before), progressBar('loading'))
    if (draft !== null) runner.keep(draft)
    const script = new ScriptedGuesses(draft === null ? null : draftOver(draft))
    const client = clientOver(runner, script.sources)
    try {
      const withGuesses = GUESSED_STREAMS.filter((streams) => streams <= runner.numSpares)
      const count = plan.decode.length * 2 + plan.mixed.length + plan.prefill.length + withGuesses.length
      const progress = progressBar('measuring', String)
      let done = 0
      const told = () => progress(++done, count)
      progress(done, count)
      const rows = await benchEngine(runner, plan, told)
      const served = await servedRates(client, runner, rows, plan, told)
      const guessed: GuessRates[] = []
      for (const streams of withGuesses) {
        guessed.push(await benchGuessed(client, script, streams))
        told()
      }
      const limits = higher(before, await measureLimits(choice, adapter))
      const found = { model: runner.info, stepTokens: runner.maxTokens, limits, rows, served, guessed }
      if (args.json) printJson({ machine: cpus()[0]?.model, ...found })
      else printRows(found)
    } finally {
      await client.close()
    }
  },
})

/** Numbers of concurrent answers to measure with guesses, as far as the slots allow. */
const GUESSED_STREAMS = [1, 4, 32] as const

/** Tokens of a step of which a quarter may be guesses: as many as pay. */
const GUESSED_TOKENS = 1024

/** Slots for the widest case and, on a GPU, steps that hold the longest prompts. */
function benchChoice(choice: EngineChoice, plan: BenchPlan, limits: Limits) {
  const { decode, mixed, prefill } = plan
  const beside = mixed.map(({ rows }) => rows + 1)
  const slots = Math.max(1, ...decode, ...beside, ...prefill.map(({ prompts }) => prompts))
  const longest = Math.max(
    choice.speculate === 'lookup' || choice.draft !== undefined ? GUESSED_TOKENS : 0,
    ...mixed.map(({ rows, tokens }) => rows + tokens),
    ...prefill.map(({ prompts, tokens }) => prompts * tokens),
  )
  const maxTokens = limits !== null && limits.device !== 'cpu' ? Math.min(MAX_STEP_TOKENS, longest) : undefined
  return { ...choice, slots, maxTokens: choice.maxTokens ?? (maxTokens || undefined) }
}

/** Each decode case through the engine's loop. */
async function servedRates(
  client: EngineClient,
  runner: Runner,
  rows: readonly BenchRow[],
  plan: BenchPlan,
  onRate: () => void,
) {
  const rates: ServedRate[] = []
  for (const { kind, batch, step } of rows) {
    if (kind !== 'decode') continue
    rates.push(await benchLoop(client, runner, batch, step.milliseconds, plan))
    onRate()
  }
  return rates
}

type Limits = (MachineLimits & { readonly device: 'cpu' | 'cuda' | 'webgpu' }) | null

/** Null on several devices and on the reference, where no limits are measured. */
async function measureLimits(
  { device = 'auto', ppDevices, threads }: EngineChoice,
  adapter: number | null,
): Promise<Limits> {
  if (ppDevices !== undefined || device === 'reference') return null
  if (adapter !== null) return { device: 'webgpu', ...(await measureWebgpu(adapter)) }
  const isCuda = device.startsWith('cuda') || (device === 'auto' && hasUsableCuda())
  if (!isCuda) {
    const { readBytesPerSecond, fmaOperationsPerSecond } = measureMachine(threads === undefined ? {} : { threads })
    const limits = { bytesPerSecond: readBytesPerSecond, operationsPerSecond: fmaOperationsPerSecond }
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

function pairs(given: readonly string[], flag: string, sign: string, example: string): [number, number][] {
  return given
    .filter((part) => part !== '')
    .map((part) => {
      const numbers = part.split(sign).map((digits) => (/^\d+$/.test(digits) ? Number(digits) : 0))
      const [first, second] = numbers
      if (numbers.length === 2 && first && second) return [first, second]
      throw new SkeinError('invalid_request', `${flag} takes cases like ${example}, not "${part}"`)
    })
}

/** The better of the measurements before and after the cases, because a neighbour may have disturbed one. */
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
  readonly served: readonly ServedRate[]
  /** Empty if nothing is guessed. */
  readonly guessed: readonly GuessRates[]
}

function printRows({ model, stepTokens, limits, rows, served, guessed }: Found): void {
  const { architecture, numParameters, weightType, weightBytes, device } = model
  process.stdout.write(
    `${architecture} ${formatCount(numParameters)} parameters, ${weightType}, ${formatBytes(weightBytes)}; ${device}\n`,
  )
  if (limits) process.stdout.write(`this machine now: ${describeLimits(limits)}\n`)
  const share = (row: BenchRow) => {
    if (!limits) return []
    const least = rooflineSeconds(model, row, stepTokens, limits)
    return [row.forward, row.step].map(({ milliseconds }) => `${((100_000 * least) / milliseconds).toFixed(0)} %`)
  }
  printTable([
    [
      ...['case', 'forward ms', 'tokens/s', 'step ms', 'tokens/s', 'ms 25 %', 'ms 75 %', 'repeats'],
      ...['served tokens/s', 'of steps', ...(limits ? ['forward of limit', 'step of limit'] : [])],
    ],
    ...rows.map((row, i) => {
      const { forward, step } = row
      return [
        nameOf(row),
        ...[forward, step].flatMap(({ milliseconds, tokensPerSecond }) => [
          milliseconds.toFixed(3),
          tokensPerSecond.toFixed(1),
        ]),
        step.lowMilliseconds.toFixed(3),
        step.highMilliseconds.toFixed(3),
        String(step.repeats),
        ...servedColumns(served[i]),
        ...share(row),
      ]
    }),
  ])
  if (guessed.length === 0) return
  process.stdout.write('\n')
  const of = (rate: number, off: number) => `${rate.toFixed(1)} (${(rate / off).toFixed(2)}x)`
  printTable([
    [
      ...['answers at once', 'tokens/s without guesses'],
      ...guessed[0]!.guessed.map(({ likely }) => `${100 * likely} % right`),
    ],
    ...guessed.map(({ streams, off, guessed: rates }) => [
      ...[String(streams), off.toFixed(1)],
      ...rates.map(
        ({ tokensPerSecond, accepted }) => `${of(tokensPerSecond, off)}, ${(100 * accepted).toFixed(0)} % drawn`,
      ),
    ]),
  ])
}

function servedColumns(rate: ServedRate | undefined): string[] {
  return rate === undefined ? ['', ''] : [rate.tokensPerSecond.toFixed(1), `${(100 * rate.ofSteps).toFixed(1)} %`]
}

function nameOf({ kind, batch, tokens }: BenchRow): string {
  if (kind === 'decode') return `decode ${batch}`
  return kind === 'mixed' ? `mixed ${batch}+${tokens}` : `prefill ${batch}x${tokens}`
}

function describeLimits({ device, bytesPerSecond, operationsPerSecond }: NonNullable<Limits>) {
  const [gigabytes, tera] = [bytesPerSecond / 1e9, operationsPerSecond / 1e12]
  if (device === 'cuda')
    return `copies ${gigabytes.toFixed(0)} GB/s read and written, multiplies ${tera.toFixed(0)} TFLOP/s in f16`
  return device === 'webgpu'
    ? `reads ${gigabytes.toFixed(0)} GB/s, multiplies ${tera.toFixed(1)} TFLOP/s in f32`
    : `reads ${gigabytes.toFixed(1)} GB/s, multiplies ${(1000 * tera).toFixed(0)} GFLOP/s in f32`
}

const tokenizer = defineCommand({
  description: 'Encoding speed of a vocabulary',
  examples: [['skein bench tokenizer', 'megabytes and tokens per second']],
  flags: { vocab: path("Vocabulary file (default: the demo model's)"), json: toggle('One JSON object') },
  run({ args }) {
    const { vocab } = args
    const result = benchTokenizer(vocab ? Tokenizer.fromFile(vocab) : loadTokenizer({ model: modelPath(undefined) }))
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
  description: "Peak rates of a GPU, the limits of the engine's figures",
  examples: [['skein bench device --device cuda:1', 'the second GPU']],
  flags: { device: text('cuda, cuda:N or cuda:UUID', { default: 'cuda' }), json: toggle('One JSON object') },
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

export const bench = defineCommands({
  engine,
  ops: benchOpsCommand,
  quality: benchQuality,
  device,
  tokenizer,
  serve: benchServeCommand,
})
