/**
 * Counts the requests under way and, on the way down, refuses new ones until they are gone. It knows no HTTP and no
 * signals; `shutdown.ts` gives the order.
 */
import { SkeinError } from '../../errors.ts'

export class Drain {
  #active = new Set<AbortController>()
  #isDraining = false
  #idle: (() => void)[] = []

  get isDraining(): boolean {
    return this.#isDraining
  }

  get numActive(): number {
    return this.#active.size
  }

  /** Throws `model_not_loaded` once draining has begun. */
  checkOpen(): void {
    if (!this.#isDraining) return
    throw shuttingDown()
  }

  /** Registers a request by what would cancel it; the returned function ends it. */
  enter(controller: AbortController): () => void {
    this.#active.add(controller)
    return () => {
      this.#active.delete(controller)
      if (this.#active.size > 0) return
      for (const resolve of this.#idle.splice(0)) resolve()
    }
  }

  /** Refuses new requests from now on; resolves when none is left, or after `timeoutMs` with those left cancelled. */
  async drain(timeoutMs: number): Promise<void> {
    this.#isDraining = true
    if (this.#active.size === 0) return
    const idle = new Promise<void>((resolve) => this.#idle.push(resolve))
    const timer = setTimeout(() => this.abortAll(), timeoutMs)
    await idle
    clearTimeout(timer)
  }

  /** Cancels everything under way, with the reason; a drain in progress then ends. */
  abortAll(): void {
    this.#isDraining = true
    for (const controller of this.#active) controller.abort(shuttingDown())
  }
}

function shuttingDown(): SkeinError {
  return new SkeinError('model_not_loaded', 'the server is shutting down; try another or later')
}
