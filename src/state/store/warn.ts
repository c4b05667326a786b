/** Says what went wrong and is not worth failing for. */
export function warn(what: string, error: unknown): void {
  process.stderr.write(`skein: ${what}: ${String(error)}\n`)
}
