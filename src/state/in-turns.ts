/** Work of many milliseconds in small steps: done at once, or between turns of the event loop. */

/** It yields where others may go on. */
export type Steps<T> = Generator<undefined, T>

/** Milliseconds of a turn of the event loop that steps may take, if another like the last fits; one is always done. */
const TURN_MS = 2

export function atOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/** The last of the works of this process: they are done one after another, since each would take its part of a turn. */
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
