/**
 * Data fetched for a component. It is fetched again on request, with a new key, and when the server is back.
 */
import { useCallback, useEffect, useState } from 'preact/hooks'
import { keyChanges } from '../lib/api.ts'
import { messageOf } from '../lib/errors.ts'
import { returns } from '../lib/live.ts'

export interface Resource<T> {
  /** The latest value; it stays while it is fetched again. */
  readonly value: T | null
  readonly error: string | null
  readonly isLoading: boolean
  refresh(): void
}

export function useResource<T>(
  load: (signal: AbortSignal) => Promise<T>,
  dependencies: readonly unknown[],
): Resource<T> {
  const [value, setValue] = useState<T | null>(null)
  const [error, setError] = useState<string | null>(null)
  const [isLoading, setLoading] = useState(true)
  const [round, setRound] = useState(0)
  const numKeys = keyChanges.value
  const numReturns = returns.value
  // Depends on the dependencies, the key, the server and the round; `load` itself is new at every render.
  useEffect(() => {
    const abort = new AbortController()
    setLoading(true)
    load(abort.signal)
      .then((loaded) => {
        setValue(loaded)
        setError(null)
      })
      .catch((thrown: unknown) => {
        if (!abort.signal.aborted) setError(messageOf(thrown))
      })
      .finally(() => {
        if (!abort.signal.aborted) setLoading(false)
      })
    return () => abort.abort()
  }, [...dependencies, numKeys, numReturns, round])
  const refresh = useCallback(() => setRound((before) => before + 1), [])
  return { value, error, isLoading, refresh }
}
