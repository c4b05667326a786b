/** Splits work of many milliseconds into small steps, which run at once or between turns of the event loop. */

/** It yields where other work may run. */
export type Steps<T> = Generator<undefined, T>

/**
 * Milliseconds of steps per turn of the event loop. At least one step runs, and another one only if it probably fits.
 */
const TURN_MS = 2

export function atOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/** The last work in line: works run one after another, since each would take its part of every turn. */
let last: Promise<unknown> = Promise.resolve()

export function inTurns<T>(steps: Steps<T>): Promise<T> {
  const work = last.then(() => between(steps))
  last = work.catch(() => {})
  return work
}

async function between<T>(steps: Steps<T>): Promise<T> {
  for (;;) {
    let now = performance.now()
    const end = now + TURN_MS
    for (let took = 0; now + took < end; ) {
      const step = steps.next()
      if (step.done === true) return step.value
      took = performance.now() - now
      now += took
    }
    await new Promise((resolve) => setImmediate(resolve))
  }
}
