/** Output of a worker process, line by line. */
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'

/** A native library may print anything; a line longer than this is cut. */
const MAX_LINE = 4096

export function forwardLines(stream: Readable | null, onLine: (line: string) => void): void {
  if (stream === null) return
  createInterface({ input: stream, crlfDelay: Number.POSITIVE_INFINITY }).on('line', (line) => {
    if (line !== '') onLine(line.slice(0, MAX_LINE))
  })
}
