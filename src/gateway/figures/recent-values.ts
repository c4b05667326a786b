/** Values of the last seconds, for percentiles: a bounded sample of each second, oldest second first out. */

const SECONDS = 10
/** Of one second; of more, every one has the same chance to be kept. */
const MAX_KEPT = 500

interface Second {
  readonly at: number
  readonly values: number[]
  count: number
}

export class RecentValues {
  #seconds: Second[] = []

  add(value: number, now = performance.now()): void {
    const second = this.#secondOf(Math.floor(now / 1000))
    second.count++
    if (second.values.length < MAX_KEPT) second.values.push(value)
    else {
      const at = Math.floor(Math.random() * second.count)
      if (at < MAX_KEPT) second.values[at] = value
    }
  }

  /** By nearest rank; null without values. */
  percentiles(now = performance.now()): {
    readonly p50: number | null
    readonly p90: number | null
    readonly p99: number | null
  } {
    const oldest = Math.floor(now / 1000) - SECONDS
    const values = this.#seconds.filter(({ at }) => at >= oldest).flatMap((second) => second.values)
    values.sort((a, b) => a - b)
    const at = (share: number) => values[Math.ceil(share * values.length) - 1] ?? null
    return { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
  }

  #secondOf(at: number): Second {
    const last = this.#seconds.at(-1)
    if (last?.at === at) return last
    const next = { at, values: [], count: 0 }
    this.#seconds = [...this.#seconds.slice(-SECONDS), next]
    return next
  }
}
