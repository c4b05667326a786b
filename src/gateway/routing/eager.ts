/** Starts a generator at once, as callers of an engine may expect, and gives what it yields in order. */
export function eager<T>(source: AsyncGenerator<T>): AsyncIterable<T> {
  let first: Promise<IteratorResult<T>> | null = source.next()
  // Whoever iterates gets the error; until then it is nobody's.
  first.catch(() => {})
  return {
    [Symbol.asyncIterator]: () => ({
      next: () => {
        const next = first ?? source.next()
        first = null
        return next
      },
      return: (value) => source.return(value),
    }),
  }
}
