/**
 * Where the time of a step goes: `node test/cuda/profile.ts MODEL [wkv=f16] [quant=i8] decode=1,32,320 mixed=320+16
 * prefill=1x1024,8x512 guessed=32x4`. A mixed case has rows of one token, and one longer row; of guesses all tokens are drawn at. MODEL is a file, or a size of random
 * weights, optionally with fewer layers: 1.5b, 7.2b/8. Replays the commands of one kind alone, for all layers, as a
 * graph, and prints the microseconds per layer of each kind and the clock meanwhile, which falls at the card's power limit;
 * the last line is the whole step. Between two launches of a kind the weights of all layers are read, so the cache is
 * cold.
 */
import { existsSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Ops } from '../../src/backend/backend.ts'
import { type Batch, type Capacity, createBatch } from '../../src/backend/batch.ts'
import { type CudaBackend, createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { NativeArena } from '../../src/backend/cuda/driver/arena.ts'
import { Gemm } from '../../src/backend/cuda/gemm/gemm.ts'
import type { StepCommand } from '../../src/backend/cuda/ops/fused-layers.ts'
import { Recording } from '../../src/backend/cuda/ops/recording.ts'
import { StepBuffer } from '../../src/backend/cuda/step/buffer.ts'
import { type Command, isDecode, LONG_ROW, type StepShape, StepStream } from '../../src/backend/cuda/step/command.ts'
import type { WeightType } from '../../src/backend/weight-types.ts'
import { RANDOM_MODEL_SIZES, randomModelDimensions, writeRandomWeights } from '../../src/bench/random-model.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import type { Model } from '../../src/model/model.ts'
import { loadRwkv7 } from '../../src/model/rwkv7.ts'
import { clockMeter } from './clocks.ts'

interface Case {
  readonly name: string
  /** Tokens of each row, the shortest first. */
  readonly lengths: readonly number[]
  /** The model's output at every token, and not at the last of each row alone. */
  readonly isWhole?: boolean
}

const sum = (numbers: readonly number[]) => numbers.reduce((all, one) => all + one, 0)

function capacityOf({ lengths: { length }, lengths, isWhole = false }: Case): Capacity {
  const tokens = sum(lengths)
  const drawn = isWhole ? tokens : length
  return { tokens, rows: length, logits: drawn, samples: drawn }
}

interface Profiled {
  readonly commands: Map<string, Command[]>
  readonly all: readonly StepCommand[]
}

function recordModel(backend: CudaBackend, model: Model, one: Case): Profiled {
  const capacity = capacityOf(one)
  const states = backend.statePool(model.stateShape, capacity.rows)
  const penalties = backend.penaltyPool(model.vocabSize, capacity.samples)
  const recording = new Recording(backend.device, capacity, 1)
  const commands = new Map<string, Command[]>()
  const ops = recording.ops()
  let linears = 0
  const named = Object.fromEntries(
    Object.entries(ops).map(([name, op]) => [
      name,
      (...args: never[]) => {
        // Every op of Ops is a function of operands; its own types say which.
        ;(op as (...args: never[]) => void)(...args)
        const label = name === 'linear' ? `linear ${LINEARS[linears++ % LINEARS.length]}` : name
        commands.set(label, [...(commands.get(label) ?? []), recording.commands.at(-1)!.alone])
      },
    ]),
  ) as unknown as Ops
  const [x] = model.forward(named, states, capacity)
  const { ln_out, head } = model.output!
  const hidden = backend.activation([capacity.logits, model.stateShape.channels])
  const logits = backend.tensor([capacity.logits, model.vocabSize])
  named.gatherNorm(hidden, x, ln_out)
  named.logits(logits, hidden, head)
  named.sample(logits, penalties)
  return { commands, all: recording.commands }
}

const LINEARS = ['in', 'low-rank out', 'output', 'key', 'value']

function fillBatch(one: Case, vocabSize: number): Batch {
  const capacity = capacityOf(one)
  const batch = createBatch(capacity)
  batch.numTokens = capacity.tokens
  batch.numRows = capacity.rows
  batch.numLogits = batch.numSamples = capacity.samples
  for (let t = 0; t < batch.numTokens; t++) batch.tokens[t] = (1 + t * 104_729) % vocabSize
  for (const [b, length] of one.lengths.entries()) {
    batch.starts[b + 1] = batch.starts[b]! + length
    batch.slots[b] = b
  }
  for (let s = 0; s < batch.numSamples; s++) {
    batch.sampleRow[s] = batch.sampleSlot[s] = s
    batch.logitRows[s] = one.isWhole === true ? s : batch.starts[s + 1]! - 1
    batch.sampleFloats.set([1, 0.5, 0, 0, 0, 1, 1], 8 * s)
    batch.sampleInts.set([0, s, 0, 0, 0, -1], 8 * s)
  }
  return batch
}

function profile(backend: CudaBackend, gemm: Gemm, model: Model, one: Case): void {
  const { device } = backend
  const { commands, all } = recordModel(backend, model, one)
  const batch = fillBatch(one, model.vocabSize)
  const capacity = capacityOf(one)
  const singles = one.lengths.filter((length) => length === 1).length
  const longRows = one.lengths.filter((length) => length >= LONG_ROW).length
  const shape: StepShape = { ...capacity, singles, longRows, waits: 0 }
  const buffer = new StepBuffer(device, capacity)
  const stream = new StepStream(device, gemm, buffer, new NativeArena())
  for (const command of all) {
    command.prepare(gemm, shape)
    command.alone.prepare?.(gemm, shape)
  }
  buffer.upload(batch, shape)
  // Real values in every buffer before any kind runs alone.
  for (const command of all) command.run(stream, shape)
  device.synchronize()
  const time = (list: readonly Command[]) => {
    const graph = device.capture(() => {
      for (const command of list) command.run(stream, shape)
    }, 'profile')
    let microseconds = 0
    const clock = clockOf(() => {
      microseconds = device.time(() => graph.launch(), 9)
    })
    graph.dispose()
    return { microseconds, clock }
  }
  console.log(`\n${one.name}`)
  for (const [label, list] of commands) print(label, time(list), list.length)
  if (isDecode(shape) && shape.tokens <= 2) print('each op for itself', time(all.map(({ alone }) => alone)))
  const whole = time(all)
  const rate = ((shape.tokens * 1e6) / whole.microseconds).toFixed(0)
  print('step', whole)
  console.log(`${rate} tok/s`)
}

interface Timed {
  readonly microseconds: number
  /** MHz */
  readonly clock: number
}

function print(label: string, { microseconds, clock }: Timed, count = 1): void {
  const each = (microseconds / count).toFixed(1).padStart(9)
  const [times, all] = [String(count).padStart(3), microseconds.toFixed(0).padStart(8)]
  console.log(`${label.padEnd(22)} ${each} us x ${times} = ${all} us at ${clock.toFixed(0)} MHz`)
}

/** A file, or a random model of a released size made for this run. */
function modelOf(name: string): string {
  const [size, layers] = name.split('/')
  const known = RANDOM_MODEL_SIZES.find((one) => one === size)
  if (known === undefined || existsSync(name)) return name
  const dimensions = randomModelDimensions(known)
  const path = join(mkdtempSync(join(tmpdir(), 'skein-')), 'random.pth')
  writeRandomWeights(path, { ...dimensions, layers: Number(layers ?? dimensions.layers) }, { seed: 1, dtype: 'bf16' })
  return path
}

function casesOf(text: string | undefined, lengthsOf: (a: number, b: number) => readonly number[]): Case[] {
  const names = (text ?? '').split(',').filter((one) => one !== '')
  return names.map((name) => {
    const [a, b = 1] = name.split(/[x+]/).map(Number)
    return { name, lengths: lengthsOf(a!, b) }
  })
}

const rows = (count: number, tokens: number) => Array.from({ length: count }, () => tokens)

const [path, ...settings] = process.argv.slice(2)
const options = Object.fromEntries(settings.map((setting) => setting.split('=')))
const backend = createCudaBackend({ wkv: options.wkv === 'f16' ? 'f16' : 'f32' })
const gemm = new Gemm(backend.device)
const clockOf = clockMeter(backend.device)
const checkpoint = openCheckpoint(modelOf(path!))
const weightType = options.quant as WeightType | undefined
const model = loadRwkv7(checkpoint, backend, { weightType })
console.log(`${path}: ${backend.description}`)
for (const one of [
  ...casesOf(options.decode, rows),
  ...casesOf(options.mixed, (answers, tokens) => [...rows(answers, 1), tokens]),
  ...casesOf(options.prefill, rows),
  ...casesOf(options.guessed, rows).map((one) => ({ ...one, isWhole: true })),
])
  profile(backend, gemm, model, one)
backend.device.synchronize()
process.exit(0)
