/**
 * Counts the requests in flight and, during shutdown, refuses new ones until all have ended. It knows neither HTTP nor
 * signals; `shutdown.ts` runs the sequence.
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

  /** Registers a request by the controller that cancels it. The returned function unregisters it. */
  enter(controller: AbortController): () => void {
    this.#active.add(controller)
    return () => {
      this.#active.delete(controller)
      if (this.#active.size > 0) return
      for (const resolve of this.#idle.splice(0)) resolve()
    }
  }

  /** Refuses new requests from now on. Resolves when none is left; after `timeoutMs` it cancels the rest. */
  async drain(timeoutMs: number): Promise<void> {
    this.#isDraining = true
    if (this.#active.size === 0) return
    const idle = new Promise<void>((resolve) => this.#idle.push(resolve))
    const timer = setTimeout(() => this.abortAll(), timeoutMs)
    await idle
    clearTimeout(timer)
  }

  /** Cancels all requests in flight, with the reason; a running `drain` then ends. */
  abortAll(): void {
    this.#isDraining = true
    for (const controller of this.#active) controller.abort(shuttingDown())
  }
}

function shuttingDown(): SkeinError {
  return new SkeinError('model_not_loaded', 'the server is shutting down; retry later or on another server')
}
