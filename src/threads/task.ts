/** Wraps a function as a task of pool.ts, so that its errors keep their codes across threads. */
import { type ErrorShape, SkeinError } from '../errors.ts'

export type Outcome<Out> = { readonly value: Out } | { readonly error: ErrorShape }

export function task<In, Out>(work: (input: In) => Out | Promise<Out>): (input: In) => Promise<Outcome<Out>> {
  return async (input) => {
    try {
      return { value: await work(input) }
    } catch (error) {
      return { error: SkeinError.from(error).toShape() }
    }
  }
}
