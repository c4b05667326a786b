/**
 * Runs rows of several states in common steps: everything that waits when a step ends goes into the next, so that
 * parallel answers share the device. It knows no text.
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

  get maxTokens(): number {
    return this.#runner.maxTokens
  }

  /** One row per slot at a time. */
  run(row: BatchRow): Promise<RowResult> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ row, resolve, reject })
      if (!this.#isRunning) void this.#goOn()
    })
  }

  async #goOn(): Promise<void> {
    this.#isRunning = true
    // Lets rows that are requested in the same turn of the event loop join.
    await Promise.resolve()
    while (this.#waiting.length > 0) {
      const together = this.#take()
      try {
        const results = await landed(this.#runner.launch(together.map(({ row }) => row)))
        for (const [i, { resolve }] of together.entries()) resolve(results[i]!)
      } catch (error) {
        for (const { reject } of together) reject(SkeinError.from(error))
      }
      // Lets callers that waited for this step request their next row.
      await Promise.resolve()
    }
    this.#isRunning = false
  }

  /** The first waiting row, and others as far as there is room. */
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
