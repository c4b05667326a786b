/**
 * Runs in the thread of grammars: one matcher per row, which is told the drawn tokens and writes the mask of allowed
 * next tokens. Messages are handled in order, without waiting.
 */
import { type ErrorShape, SkeinError } from '../errors.ts'
import { GrammarCompiler } from './compiler.ts'
import type { Constraint } from './constraint.ts'
import { MAX_FORCED, SharedMasks } from './shared-masks.ts'
import { type TokenTable, Vocabulary } from './vocabulary.ts'
import type { Binding, Handle, MatcherHandle } from './xgrammar.ts'

export interface RowsOptions {
  readonly tokens: TokenTable
  /** Tokens of the model; the last ones may have no bytes. */
  readonly vocabSize: number
  readonly numRows: number
  readonly memory: SharedArrayBuffer
  /** Index of this thread. */
  readonly thread: number
}

export type ToRows =
  | { readonly type: 'compile'; readonly key: string; readonly constraint: Constraint }
  | {
      readonly type: 'open'
      readonly row: number
      readonly turn: number
      readonly key: string
      readonly constraint: Constraint
      /** Tokens that its answer already has. */
      readonly tokens: readonly number[]
      /** Required tokens after the last of them are not among them. */
      readonly mayForce: boolean
      /** Required tokens are reported, so that they need not be drawn. */
      readonly forces: boolean
    }
  | { readonly type: 'advance'; readonly steps: readonly Step[] }
  | { readonly type: 'close'; readonly row: number }

export interface Step {
  readonly row: number
  readonly turn: number
  readonly token: number
}

export interface Compiled {
  readonly ms: number
  readonly isBloated: boolean
  readonly error: ErrorShape | null
}

/** A trap of WebAssembly, a full stack, or a grammar that another instance has compiled. */
function isTrap(error: unknown): boolean {
  return error instanceof WebAssembly.RuntimeError || error instanceof RangeError || error instanceof SkeinError
}

export class MatcherRows {
  readonly #compiler: GrammarCompiler
  readonly #vocabulary: Vocabulary
  readonly #vocabSize: number
  readonly #masks: SharedMasks
  readonly #thread: number
  readonly #rows = new Map<number, { readonly matcher: MatcherHandle; readonly forces: boolean }>()
  readonly #report: (compiled: Compiled) => void

  constructor(
    binding: Binding,
    { tokens, vocabSize, numRows, memory, thread }: RowsOptions,
    report: (compiled: Compiled) => void,
  ) {
    this.#vocabulary = new Vocabulary(tokens)
    this.#compiler = new GrammarCompiler(binding, this.#vocabulary)
    this.#vocabSize = vocabSize
    this.#masks = new SharedMasks(numRows, Math.ceil(vocabSize / 32), memory)
    this.#thread = thread
    this.#report = report
  }

  /** Throws when its instance of the grammar engine is broken: what has trapped once refuses all that follows. */
  handle(message: ToRows): void {
    switch (message.type) {
      case 'compile':
        this.#compile(message)
        return
      case 'open':
        this.#work(message.row, message.turn, message.mayForce, () => this.#open(message))
        break
      case 'advance':
        for (const { row, turn, token } of message.steps) this.#work(row, turn, true, () => this.#accept(row, token))
        break
      case 'close':
        this.#rows.get(message.row)?.matcher.delete()
        this.#rows.delete(message.row)
        return
    }
    this.#masks.notify()
  }

  #compile({ key, constraint }: ToRows & { type: 'compile' }): void {
    const begin = performance.now()
    let error: ErrorShape | null = null
    try {
      this.#tryFirst(this.#compiler.compile(key, constraint))
    } catch (thrown) {
      error = SkeinError.from(thrown).toShape()
    }
    const { isBloated } = this.#compiler
    this.#report({ ms: performance.now() - begin, isBloated, error })
  }

  /**
   * The first mask may take far longer than compiling (hundreds of optional parts in a row: 15 s). So it belongs to the
   * trial: beside other answers it would hold their thread.
   */
  #tryFirst(grammar: Handle): void {
    const matcher = new this.#compiler.binding.GrammarMatcher(grammar, undefined, false, -1)
    try {
      matcher.GetNextTokenBitmask(this.#vocabSize).delete()
    } catch {
      const message = 'the grammar of the answer: it is too complicated for its first token; make it simpler'
      throw new SkeinError('invalid_request', message)
    } finally {
      matcher.delete()
    }
  }

  /** Rewrites a row, or reports that it cannot continue. */
  #work(row: number, turn: number, mayForce: boolean, change: () => void): void {
    this.#masks.setBusyTurn(this.#thread, turn)
    const begin = performance.now()
    // The first turn in a thread compiles the grammar.
    const isOpened = !this.#rows.has(row)
    try {
      change()
      const { matcher, forces } = this.#rows.get(row)!
      const isForcing = mayForce && forces
      const forced = isForcing ? this.#force(matcher) : []
      this.#writeMask(matcher, row)
      if (isForcing && this.#mustEnd(row)) forced.push(this.#vocabulary.stopToken)
      this.#masks.write(row, turn, 'open', forced, isOpened ? 0 : performance.now() - begin)
    } catch (error) {
      this.#masks.write(row, turn, 'failed', [], 0)
      this.#masks.notify()
      if (isTrap(error)) throw error
    }
    this.#masks.setBusyTurn(this.#thread, 0)
  }

  #open({ row, key, constraint, tokens, forces }: ToRows & { type: 'open' }): void {
    const grammar = this.#compiler.compile(key, constraint)
    const { binding } = this.#compiler
    const matcher = new binding.GrammarMatcher(grammar, undefined, false, -1)
    this.#rows.set(row, { matcher, forces })
    for (const token of tokens) this.#accept(row, token)
  }

  #accept(row: number, token: number): void {
    const isAccepted = this.#rows.get(row)?.matcher.AcceptToken(token, false)
    if (isAccepted !== true) throw new Error('a token that the grammar does not allow')
  }

  /** Accepts required tokens: those of certain text, and the end if nothing else may follow. */
  #force(matcher: MatcherHandle): number[] {
    const [certain] = matcher.FindJumpForwardString().split('\ufffd')
    const text = new TextEncoder().encode(certain)
    const forced: number[] = []
    for (const token of this.#vocabulary.certainTokens(text).slice(0, MAX_FORCED - 1)) {
      if (!matcher.AcceptToken(token, false)) break
      forced.push(token)
    }
    return forced
  }

  #mustEnd(row: number): boolean {
    const mask = this.#masks.maskOf(row)
    return mask[0] === 1 << this.#vocabulary.stopToken && mask.every((word, i) => i === 0 || word === 0)
  }

  /** A row of the model has one word per 32 tokens, like xgrammar's own. */
  #writeMask(matcher: MatcherHandle, row: number): void {
    if (matcher.IsTerminated()) return
    const { binding } = this.#compiler
    const vector = matcher.GetNextTokenBitmask(this.#vocabSize)
    // Copying to the other signedness would convert element by element.
    const { buffer, byteOffset, length } = binding.vecIntToView(vector)
    this.#masks.maskOf(row).set(new Uint32Array(buffer, byteOffset, length))
    vector.delete()
  }
}
