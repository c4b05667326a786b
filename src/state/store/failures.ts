/** Errors of a store: what clients are told, and what only the log says. */
import { SkeinError } from '../../errors.ts'

/** Says what went wrong and is not worth failing for. */
export function warn(what: string, error: unknown): void {
  tell(`${what}: ${String(error)}`)
}

export function tell(what: string): void {
  process.stderr.write(`skein: ${what}\n`)
}

/** Of what was to be written: state_refused where another try would be refused too, else state_unavailable. */
export function unwritten(error: unknown): SkeinError {
  if (error instanceof SkeinError && error.code === 'state_refused') return error
  return isRefusal(error)
    ? new SkeinError('state_refused', reasonOf(error), { cause: error })
    : unavailable('written', error)
}

/** A constraint or type of a column, a value that SQLite has no room for, or a file that is larger than files may be. */
function isRefusal(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  // Of SQLite; and of the file system, and of values that the driver cannot bind.
  const { errcode, code } = error as { errcode?: number; code?: string }
  return errcode === undefined ? REFUSALS.includes(code ?? '') : SQLITE_REFUSALS.includes(errcode & 0xff)
}

/** SQLITE_TOOBIG, SQLITE_CONSTRAINT, SQLITE_MISMATCH and SQLITE_RANGE. */
const SQLITE_REFUSALS = [18, 19, 20, 25]
const REFUSALS = ['EFBIG', 'ERR_INVALID_ARG_TYPE', 'ERR_INVALID_ARG_VALUE', 'ERR_OUT_OF_RANGE', 'ERR_STRING_TOO_LONG']

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
