/** A function as a task of pool.ts: its errors keep their codes, which they would lose between threads. */
import { type ErrorShape, SkeinError } from '../errors.ts'

export type Outcome<Out> = { readonly value: Out } | { readonly error: ErrorShape }

export function task<In, Out>(work: (input: In) => Out): (input: In) => Outcome<Out> {
  return (input) => {
    try {
      return { value: work(input) }
    } catch (error) {
      return { error: SkeinError.from(error).toShape() }
    }
  }
}
