#!/usr/bin/env node
/** The `skein` command. An error is printed as one line and sets an exit code. */
import { CommanderError } from 'commander'
import { type ErrorCode, SkeinError } from '../errors.ts'
import { lackOfNode } from '../files/version.ts'
import { entryOf, programOf } from './commands.ts'
import { complaintOf } from './terminal/command.ts'
import { INTERRUPTED } from './terminal/output.ts'

async function run(given: readonly string[]): Promise<void> {
  const lack = lackOfNode()
  if (lack !== null) throw new SkeinError('backend_unavailable', lack)
  const argv = await withOwnFlags(asFlags(given))
  const entry = entryOf(argv[0])
  const program = await programOf(entry === undefined ? [] : [entry], { argv })
  const [command] = program.commands.filter(({ commands }) => commands.length > 0)
  const isBare = argv.length === (command === undefined ? 0 : 1)
  // An unknown command is reported as such, even with other errors or --help.
  const isUnknown = entry === undefined && argv[0]?.startsWith('-') === false
  const words = isBare ? [...argv, '--help'] : isUnknown ? argv.slice(0, 1) : argv
  try {
    await program.parseAsync(words, { from: 'user' })
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error
    const complaint = complaintOf(error, program)
    if (complaint !== null) throw complaint
  }
}

/** Accepts `help` and `version` as words, like other tools. */
function asFlags(argv: readonly string[]): readonly string[] {
  const [word, ...rest] = argv
  if (word === 'help') return [...rest, '--help']
  return word === 'version' ? ['--version'] : argv
}

/** Lets `serve` also accept the flags of the servers that it replaces. */
async function withOwnFlags(given: readonly string[]): Promise<readonly string[]> {
  const [command, ...rest] = given
  if (command !== 'serve') return given
  const { rewriteForeignFlags } = await import('../settings/foreign-flags.ts')
  const { argv, notes } = rewriteForeignFlags(rest)
  for (const note of notes) process.stderr.write(`skein: ${note}\n`)
  return [command, ...argv]
}

/** Exit codes of docs/cli.md. An interrupt has the shell's code. */
function exitCodeOf(code: ErrorCode): number {
  switch (code) {
    case 'invalid_request':
    case 'unsupported_parameter':
      return 2
    case 'aborted':
      return INTERRUPTED
    default:
      return 1
  }
}

// The reader may close the pipe early: `skein inspect FILE | head`. For `serve` this is no reason to exit: in `skein
// serve 2>&1 | tee log` Ctrl-C ends tee first, and the streams still have to finish.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (process.argv[2] === 'serve') return
  if (error.code !== 'EPIPE') throw error
  process.exit(0)
})
// Standard error may be a closed pipe or terminal, or on a full disk. Then there is nobody left to tell.
process.stderr.on('error', () => {})

run(process.argv.slice(2)).catch((error: unknown) => {
  const { code, message } = SkeinError.from(error)
  const isOurs = code === 'internal' && !(error instanceof Error && 'syscall' in error)
  // The user who interrupted needs no message.
  if (code !== 'aborted') process.stderr.write(`skein: ${message}${isOurs ? ' (internal error)' : ''}\n`)
  if (code === 'internal' && error instanceof Error && process.env.SKEIN_DEBUG) process.stderr.write(`${error.stack}\n`)
  process.exitCode = exitCodeOf(code)
})
