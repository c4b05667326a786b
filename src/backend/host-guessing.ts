/** The cost of guessed tokens on a processor, which reads all weights in each step. */
import type { Guessing } from './backend.ts'

/** Steps of 0.1B and 1.5B in int8 and q4 (docs/dev/measurements.md). With more rows the weights serve as many tokens without guesses. */
export const HOST_GUESSING: Guessing = {
  rows: 4,
  costs: [
    [1, 1],
    [2, 1],
    [3, 1.03],
    [4, 1.06],
    [5, 1.3],
    [8, 1.5],
  ],
}
