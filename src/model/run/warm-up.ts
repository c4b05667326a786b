/**
 * What a runner does before its first request: everything that would be made at first use is made, and replayed steps are
 * compared, bit for bit, with the same steps launched one by one. Where they differ they are not replayed.
 */
import type { Preparation, Program } from '../../backend/backend.ts'
import { SkeinError } from '../../errors.ts'
import { samplingNumbers } from '../../sampling.ts'
import type { BatchRow, Runner, StateData } from '../runner.ts'

export interface WarmUp {
  readonly onProgress?: (done: number, total: number) => void
  /** Told in one sentence what was found wrong, and what is done about it. */
  readonly onWarning?: (message: string) => void
}

const NO_TOKENS = new Int32Array(0)
const STEPS = 3
/** Tokens of a warm-up prompt: rows of this many have kernels of their own. */
const PROMPT_TOKENS = 40

/** The slots must be free; they are as they were afterwards, that is cleared or never used. */
export function warmUp(runner: Runner, program: Program, { onProgress, onWarning }: WarmUp): void {
  const preparations = program.preparations?.() ?? []
  const total = preparations.length
  for (const [i, preparation] of preparations.entries()) {
    prepare(program, preparation, onWarning)
    onProgress?.(i + 1, total)
  }
  if (program.usesGraphs !== true) return
  const sizes = preparations.map(({ rows }) => rows).filter((rows) => rows > 0)
  // The widest has every kernel's widest form, the first those for a single row, one between a bucket with padding.
  const checked = new Set([1, Math.ceil(0.6 * Math.max(1, ...sizes)), Math.max(1, ...sizes)])
  const wrong = [...checked]
    .filter((rows) => rows <= runner.numSlots && !agrees(runner, program, rows, feedDraws))
    .map((rows) => (rows === 1 ? 'one row' : `${rows} rows`))
  if (!agrees(runner, program, 1, readPrompt)) wrong.push('a prompt')
  if (wrong.length === 0) return
  program.usesGraphs = false
  onWarning?.(
    `replayed steps of ${wrong.join(' and ')} differ from the same steps launched one by one; steps are launched one by one from now on, which is slower. Please report this with "skein doctor"`,
  )
}

/** A graph that cannot be made is done without; where the device or a kernel is at fault, steps would fail without it, too. */
function prepare(program: Program, { rows, run }: Preparation, onWarning: WarmUp['onWarning']): void {
  try {
    run()
  } catch (error) {
    const { code, message } = SkeinError.from(error)
    const isOfGraph = rows > 0 && program.usesGraphs === true
    if (!isOfGraph || (code !== 'out_of_memory' && code !== 'internal')) throw error
    program.usesGraphs = false
    onWarning?.(
      `no graph of a step of ${rows === 1 ? 'one row' : `${rows} rows`} can be made: ${message}; steps are launched one by one from now on, which is slower`,
    )
  }
}

interface Seen {
  readonly tokens: readonly number[]
  readonly first: StateData
  readonly last: StateData
}

/** Runs steps over the first slots, which are cleared, and returns what was drawn. */
type Play = (runner: Runner, rows: number) => number[]

function agrees(runner: Runner, program: Program, rows: number, play: Play): boolean {
  const replayed = watch(runner, rows, play)
  program.usesGraphs = false
  const launched = watch(runner, rows, play)
  program.usesGraphs = true
  return (
    replayed.tokens.every((token, i) => token === launched.tokens[i]) &&
    isSame(replayed.first, launched.first) &&
    isSame(replayed.last, launched.last)
  )
}

function watch(runner: Runner, rows: number, play: Play): Seen {
  clear(runner, rows)
  const tokens = play(runner, rows)
  const seen = { tokens, first: stateIn(runner, 0), last: stateIn(runner, rows - 1) }
  clear(runner, rows)
  return seen
}

/** States and penalty counts of the first slots. */
function clear(runner: Runner, rows: number): void {
  for (let slot = 0; slot < rows; slot++) {
    runner.clearSlot(slot)
    runner.resetPenalties(slot, NO_TOKENS)
  }
}

/** A few decode steps, each row fed what it drew. */
function feedDraws(runner: Runner, rows: number): number[] {
  const { vocabSize } = runner.info
  let tokens = Array.from({ length: rows }, (_, slot) => (slot * 7919) % vocabSize)
  const all: number[] = []
  for (let position = 0; position < STEPS; position++) {
    const step = tokens.map((token, slot) => rowOf(slot, [Math.max(0, token)], position))
    tokens = runner.step(step).map(({ drawn }) => drawn[0]!.token)
    all.push(...tokens)
  }
  return all
}

/** The same prompt in one row, again and again: a shape is replayed once it has come before. */
function readPrompt(runner: Runner): number[] {
  const length = Math.min(PROMPT_TOKENS, runner.maxTokens)
  const prompt = Array.from({ length }, (_, i) => (i * 7919) % runner.info.vocabSize)
  return Array.from({ length: STEPS }, (_, position) => runner.step([rowOf(0, prompt, position)])[0]!.drawn[0]!.token)
}

/** Only backends that replay graphs come here, and they can wait. */
function stateIn(runner: Runner, slot: number): StateData {
  return runner.readState(slot).result()
}

function isSame(a: StateData, b: StateData): boolean {
  return a.every((array, i) => {
    const [mine, other] = [bitsOf(array), bitsOf(b[i]!)]
    // Tens of megabytes for a large model: a loop takes a tenth of the time of `every`.
    for (let at = 0; at < mine.length; at++) if (mine[at] !== other[at]) return false
    return true
  })
}

function bitsOf({ buffer, byteOffset, length }: Float32Array): Int32Array {
  return new Int32Array(buffer, byteOffset, length)
}

function rowOf(slot: number, tokens: readonly number[], position: number): BatchRow {
  const spec = {
    slot,
    ...samplingNumbers((_, { off }) => off),
    temperature: slot % 2,
    topP: 0.9,
    presencePenalty: 0.5,
    seed: BigInt(slot),
    position,
    stream: 0,
    logprobs: null,
    bias: null,
  }
  return { slot, tokens: Int32Array.from(tokens), samples: [spec] }
}
