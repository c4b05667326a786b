/** Errors of a store: what clients are told, and what only the log says. */
import { SkeinError } from '../../errors.ts'

/** Says what went wrong and is not worth failing for. */
export function warn(what: string, error: unknown): void {
  process.stderr.write(`skein: ${what}: ${String(error)}\n`)
}

export function unavailable(what: string, error: unknown): SkeinError {
  const message = `a state cannot be ${what}`
  if (isOfPath(error)) warn(message, error)
  return new SkeinError('state_unavailable', `${message}: ${reasonOf(error)}`, { cause: error })
}

function isOfPath(error: unknown): error is NodeJS.ErrnoException {
  return error instanceof Error && 'path' in error
}

/** Clients read it: where the data folder is stands in the log only. */
function reasonOf(error: unknown): string {
  if (isOfPath(error)) return error.message.split(`, ${error.syscall} `)[0]!
  return error instanceof Error ? error.message : String(error)
}
