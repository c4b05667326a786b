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

/** A log that cannot be written, for example on a full disk, must not stop the server. */
function errorOutput(): ReturnType<typeof pino.destination> {
  const output = pino.destination({ dest: 2, minLength: 0, maxLength: MAX_UNWRITTEN_BYTES })
  // Without a listener the error would end the process, which would then try forever to write the rest.
  output.on('error', () => {
    output.flushSync = () => {}
  })
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
