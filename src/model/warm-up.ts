/**
 * What a runner does before its first request: everything that would be made at first use is made, and replayed steps are
 * compared, bit for bit, with the same steps launched one by one. Where they differ they are not replayed.
 */
import type { Program } from '../backend/backend.ts'
import type { BatchRow, Runner, StateData } from './runner.ts'

export interface WarmUp {
  readonly onProgress?: (done: number, total: number) => void
  /** Told in one sentence what was found wrong, and what is done about it. */
  readonly onWarning?: (message: string) => void
}

const STEPS = 3
/** Of a prompt: rows of so many tokens have kernels of their own. */
const PROMPT_TOKENS = 40

/** The slots must be free; they are as they were afterwards, that is cleared or never used. */
export function warmUp(runner: Runner, program: Program, { onProgress, onWarning }: WarmUp): void {
  const preparations = program.preparations?.() ?? []
  const total = preparations.length
  for (const [i, { run }] of preparations.entries()) {
    run()
    onProgress?.(i + 1, total)
  }
  if (program.usesGraphs !== true) return
  const sizes = preparations.map(({ rows }) => rows).filter((rows) => rows > 0)
  // The widest has every kernel's widest form, the first those for a single row, one between a bucket with padding.
  const checked = new Set([1, Math.ceil(0.6 * Math.max(1, ...sizes)), Math.max(1, ...sizes)])
  const wrong = [...checked].filter(
    (rows) => rows <= runner.numSlots && !agrees(runner, program, rows),
  )
  if (wrong.length === 0) return
  program.usesGraphs = false
  onWarning?.(
    `replayed steps of ${wrong.join(' and ')} rows differ from the same steps launched one by one; steps are launched one by one from now on, which is slower. Please report this with "skein doctor"`,
  )
}

interface Seen {
  readonly tokens: readonly number[]
  readonly first: StateData
  readonly last: StateData
}

function agrees(runner: Runner, program: Program, rows: number): boolean {
  const replayed = play(runner, rows)
  program.usesGraphs = false
  const launched = play(runner, rows)
  program.usesGraphs = true
  return (
    replayed.tokens.every((token, i) => token === launched.tokens[i]) &&
    isSame(replayed.first, launched.first) &&
    isSame(replayed.last, launched.last)
  )
}

/** Steps of one prompt, of which the last is replayed; then a few decode steps, each row fed what it drew. */
function play(runner: Runner, rows: number): Seen {
  for (let slot = 0; slot < rows; slot++) runner.clearSlot(slot)
  const all: number[] = []
  const { vocabSize } = runner.info
  const prompt = Int32Array.from(
    { length: Math.min(PROMPT_TOKENS, runner.maxTokens) },
    (_, i) => (i * 7919) % vocabSize,
  )
  for (let position = 0; position < STEPS; position++) {
    const [result] = runner.step([{ ...rowOf(0, 0, position), tokens: prompt }])
    all.push(result!.drawn[0]!.token)
  }
  let tokens = Array.from({ length: rows }, (_, slot) => (slot * 7919) % vocabSize)
  for (let position = 0; position < STEPS; position++) {
    const step = tokens.map((token, slot) => rowOf(slot, Math.max(0, token), position))
    tokens = runner.step(step).map(({ drawn }) => drawn[0]!.token)
    all.push(...tokens)
  }
  const seen = { tokens: all, first: runner.readState(0), last: runner.readState(rows - 1) }
  for (let slot = 0; slot < rows; slot++) runner.clearSlot(slot)
  return seen
}

function isSame(a: StateData, b: StateData): boolean {
  const equal = (x: Float32Array, y: Float32Array) => Buffer.compare(bytesOf(x), bytesOf(y)) === 0
  return equal(a.shift, b.shift) && equal(a.wkv, b.wkv)
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

function rowOf(slot: number, token: number, position: number): BatchRow {
  const spec = {
    slot,
    temperature: slot % 2,
    topK: 0,
    topP: 0.9,
    minP: 0,
    noise: 0,
    presencePenalty: 0.5,
    frequencyPenalty: 0,
    penaltyDecay: 1,
    repetitionPenalty: 1,
    seed: BigInt(slot),
    position,
    stream: 0,
    logprobs: null,
    bias: null,
  }
  return { slot, tokens: Int32Array.of(token), samples: [spec] }
}
