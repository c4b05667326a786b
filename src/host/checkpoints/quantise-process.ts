/**
 * A process that quantises one checkpoint: `quantise-process.js IN OUT SCHEME`. It writes progress and errors as lines
 * of JSON. If nobody reads them any more, the server has gone and the process ends.
 */
import { writeSync } from 'node:fs'
import { constants, setPriority } from 'node:os'
import { SkeinError } from '../../errors.ts'
import { quantiseFile, SCHEMES } from './quantise-file.ts'

/** Number of progress reports. */
const REPORTS = 200

function main([input = '', output = '', scheme = '']: readonly string[]): number {
  // Requests to models have priority.
  setPriority(constants.priority.PRIORITY_LOW)
  let reported = -1
  try {
    if (!isScheme(scheme)) throw new SkeinError('invalid_request', `no scheme ${scheme}`)
    quantiseFile(input, output, {
      scheme,
      onProgress: (done, total) => {
        const part = Math.floor((done / total) * REPORTS)
        if (part === reported) return
        reported = part
        tell({ done_bytes: done, total_bytes: total })
      },
    })
    return 0
  } catch (thrown) {
    tell({ reason: SkeinError.from(thrown).message })
    return 1
  }
}

function isScheme(name: string): name is keyof typeof SCHEMES {
  return name in SCHEMES
}

function tell(line: object): void {
  writeSync(1, `${JSON.stringify(line)}\n`)
}

process.exit(main(process.argv.slice(2)))
