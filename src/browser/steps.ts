/**
 * Rows of several states in steps: whatever waits when a step is over goes into the next one together, so that answers
 * generated side by side share the device. Knows no text.
 */
import { landed } from '../backend/flight.ts'
import { SkeinError } from '../errors.ts'
import type { BatchRow, RowResult, Runner } from '../model/runner.ts'

interface Waiting {
  readonly row: BatchRow
  resolve(result: RowResult): void
  reject(error: SkeinError): void
}

export class Steps {
  readonly #runner: Runner
  #waiting: Waiting[] = []
  #isRunning = false

  constructor(runner: Runner) {
    this.#runner = runner
  }

  /** Most tokens of a row. */
  get maxTokens(): number {
    return this.#runner.maxTokens
  }

  /** Of a slot one row at a time. */
  run(row: BatchRow): Promise<RowResult> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ row, resolve, reject })
      if (!this.#isRunning) void this.#goOn()
    })
  }

  async #goOn(): Promise<void> {
    this.#isRunning = true
    // Those asked for in this turn of the event loop come along.
    await Promise.resolve()
    while (this.#waiting.length > 0) {
      const together = this.#take()
      try {
        const results = await landed(this.#runner.launch(together.map(({ row }) => row)))
        for (const [i, { resolve }] of together.entries()) resolve(results[i]!)
      } catch (error) {
        for (const { reject } of together) reject(SkeinError.from(error))
      }
      // Who was waiting asks for its next row now.
      await Promise.resolve()
    }
    this.#isRunning = false
  }

  /** The first that waits, and others as far as there is room. */
  #take(): Waiting[] {
    let room = this.#runner.maxTokens
    const taken = this.#waiting.filter(({ row }) => {
      if (row.tokens.length > room) return false
      room -= row.tokens.length
      return true
    })
    this.#waiting = this.#waiting.filter((one) => !taken.includes(one))
    return taken
  }
}
