/**
 * Results that come from a device later. Whoever asked goes on, looks now and then whether the result is there, and never
 * waits for the device: the event loop turns, and steps go on, meanwhile.
 */
import { assert, SkeinError } from '../errors.ts'

export interface Flight<T> {
  /**
   * Whether the result is there. Asking never waits. It may be what moves the work on (CUDA looks at an event), so keep
   * asking until it is true, in later turns of the event loop. Errors of the device surface here and in `result`.
   */
  readonly isDone: boolean
  /**
   * The result, the same every time. While it is not there, a backend that can block (`reference`, `cpu`, `cuda`) waits,
   * which is for tests, benches and start-up; one that cannot (WebGPU) throws.
   */
  result(): T
  /** Resolves when `isDone` has become true, where the device tells by itself; else it is to be asked for. Never rejects. */
  readonly landing?: Promise<unknown>
}

/** Something that is there already. */
export function doneFlight<T>(value: T): Flight<T> {
  return { isDone: true, result: () => value }
}

/** For a device that reports completion by promises and cannot be waited for. */
export function flightOf<T>(promise: Promise<T>): Flight<T> {
  let outcome: { readonly value: T } | { readonly error: SkeinError } | null = null
  const landing = promise.then(
    (value) => {
      outcome = { value }
    },
    (error) => {
      outcome = { error: SkeinError.from(error) }
    },
  )
  return {
    landing,
    get isDone() {
      return outcome !== null
    },
    result() {
      assert(outcome !== null, 'a flight was asked for its result before it was over')
      if ('error' in outcome) throw outcome.error
      return outcome.value
    },
  }
}

/** Several flights as one, over when all are; `join` makes its result. */
export function allFlights<T, R>(flights: readonly Flight<T>[], join: (results: T[]) => R): Flight<R> {
  return {
    get isDone() {
      // Each is asked: asking may be what moves it on.
      return flights.map(({ isDone }) => isDone).every(Boolean)
    },
    result: () => join(flights.map((flight) => flight.result())),
  }
}

/** Resolves with the result; nothing blocks meanwhile. */
export async function landed<T>(flight: Flight<T>): Promise<T> {
  while (!flight.isDone) await (flight.landing ?? new Promise((resolve) => setTimeout(resolve, 1)))
  return flight.result()
}
