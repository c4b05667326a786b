/** A task of pool.ts whose result is moved to whoever asked: large arrays are not copied. */
import { move, transferableSymbol, valueSymbol } from 'piscina'
import { type Outcome, task } from './task.ts'

/** `buffersOf`: the memory of a result, which nothing in the thread needs any more. */
export function movedTask<In, Out>(
  work: (input: In) => Out,
  buffersOf: (result: Out) => ArrayBuffer[],
): (input: In) => Promise<Outcome<Out>> {
  const run = task(work)
  return async (input) => {
    const outcome = await run(input)
    if ('error' in outcome) return outcome
    // The pool takes the value out of it.
    return move({
      [transferableSymbol]: buffersOf(outcome.value),
      [valueSymbol]: outcome,
    } as never) as never
  }
}
