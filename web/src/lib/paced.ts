/** Throttles a value that changes faster than anyone can read: laying out a long text costs more than its tokens. */

const PAUSE_MS = 40

export class Paced<T> {
  #value: T
  #timer: ReturnType<typeof setTimeout> | null = null
  readonly #show: (value: T) => void

  constructor(value: T, show: (value: T) => void) {
    this.#value = value
    this.#show = show
  }

  get value(): T {
    return this.#value
  }

  /** Shows the value soon, unless a newer one comes first. */
  set(value: T): void {
    this.#value = value
    this.#timer ??= setTimeout(() => this.flush(), PAUSE_MS)
  }

  flush(): void {
    if (this.#timer !== null) clearTimeout(this.#timer)
    this.#timer = null
    this.#show(this.#value)
  }
}
