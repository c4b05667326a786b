/**
 * The log of a server: JSON lines for machines, short lines on a terminal. It always goes to stderr; results go to
 * stdout.
 */
import { Writable } from 'node:stream'
import { type Logger, pino } from 'pino'

export const LOG_LEVELS = ['debug', 'info', 'warn', 'error', 'silent'] as const

export function createLogger(level?: (typeof LOG_LEVELS)[number]): Logger {
  const isTerminal = process.stderr.isTTY === true
  const options = { level: level ?? (isTerminal ? 'warn' : 'info') }
  return isTerminal ? pino(options, shortLines()) : pino(options, errorOutput())
}

/** Maximum bytes of unwritten lines. Further lines are dropped. */
const MAX_UNWRITTEN_BYTES = 2 ** 20

/** So many bytes are written at once; fewer wait for others. A write wakes a thread, which takes longer than a line's making. */
const WRITE_BYTES = 4096
const WRITE_AFTER_MS = 20

/** A log that cannot be written, for example on a full disk, must not stop the server. */
function errorOutput(): ReturnType<typeof pino.destination> {
  const output = pino.destination({ dest: 2, minLength: WRITE_BYTES, maxLength: MAX_UNWRITTEN_BYTES })
  // Without a listener the error would end the process, which would then try forever to write the rest.
  output.on('error', () => {
    output.flushSync = () => {}
  })
  const write = output.write.bind(output)
  let isWaiting = false
  output.write = (line) => {
    // The end of the process writes what is left.
    if (!isWaiting)
      setTimeout(() => {
        isWaiting = false
        output.flush()
      }, WRITE_AFTER_MS).unref()
    isWaiting = true
    return write(line)
  }
  return output
}

/** "12:34:56 warn  message {rest}" */
function shortLines(): Writable {
  return new Writable({
    write(chunk: Buffer, _encoding, done) {
      for (const line of chunk.toString().split('\n')) if (line) process.stderr.write(short(line))
      done()
    },
  })
}

function short(line: string): string {
  // pino's own JSON.
  const { level, time, msg, pid: _pid, hostname: _host, ...rest } = JSON.parse(line)
  const clock = new Date(time).toTimeString().slice(0, 8)
  const name = pino.levels.labels[level] ?? String(level)
  const fields = Object.keys(rest).length > 0 ? ` ${JSON.stringify(rest)}` : ''
  return `${clock} ${name.padEnd(5)} ${msg ?? ''}${fields}\n`
}
