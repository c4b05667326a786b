#!/usr/bin/env node
/** The `skein` command: subcommands are loaded only when named. Errors of ours end as one line and exit code 1. */
import { type CommandDef, defineCommand, runCommand } from 'citty'
import { SkeinError } from '../errors.ts'
import { refuseStrayWords, refuseUnknownFlags } from './args.ts'
import { rewriteForeignFlags } from './foreign-flags.ts'
import { type HelpCommand, renderHelp } from './help.ts'
import { packageVersion } from './version.ts'

// Each command keeps its own argument types; the table only needs to know that they are commands.
type AnyCommand = CommandDef<never>

const COMMANDS: Record<string, () => Promise<unknown>> = {
  serve: async () => (await import('./serve.ts')).serve,
  keys: async () => (await import('./keys.ts')).keys,
  config: async () => (await import('./config.ts')).config,
  chat: async () => (await import('./chat.ts')).chat,
  generate: async () => (await import('./generate.ts')).generate,
  bench: async () => (await import('./bench.ts')).bench,
  inspect: async () => (await import('./inspect.ts')).inspect,
  logits: async () => (await import('./logits.ts')).logits,
  tokenize: async () => (await import('./tokenize.ts')).tokenize,
  pull: async () => (await import('./pull.ts')).pull,
  ls: async () => (await import('./ls.ts')).ls,
  rm: async () => (await import('./rm.ts')).rm,
  convert: async () => (await import('./convert.ts')).convert,
  quantize: async () => (await import('./quantize.ts')).quantize,
  doctor: async () => (await import('./doctor.ts')).doctor,
}

const main = defineCommand({
  meta: {
    name: 'skein',
    version: packageVersion(),
    description: 'An RWKV inference server: many streams at once, speaking the OpenAI API.',
  },
  // citty resolves each command lazily; their argument types differ, so the record is untyped here.
  subCommands: COMMANDS as Record<string, () => Promise<CommandDef>>,
})

/** The command that the first words name, its whole name, and the words that are left. */
async function resolveCommand(
  argv: readonly string[],
): Promise<{ command: AnyCommand; name: string; words: readonly string[] }> {
  let command = main as unknown as AnyCommand
  let depth = 0
  for (const word of argv) {
    // Our own tables: lazily loaded commands here, plain ones in `bench`.
    const children = command.subCommands as Record<string, unknown> | undefined
    const child = children?.[word]
    if (!child) break
    depth++
    command = (typeof child === 'function' ? await child() : child) as AnyCommand
  }
  const name = ['skein', ...argv.slice(0, depth)].join(' ')
  return { command, name, words: argv.slice(depth) }
}

async function childrenOf(command: AnyCommand): Promise<readonly HelpCommand[]> {
  // As above.
  const children = Object.entries((command.subCommands ?? {}) as Record<string, unknown>)
  return Promise.all(
    children.map(async ([name, child]) => {
      const { meta } = (typeof child === 'function' ? await child() : child) as AnyCommand
      const { description = '' } = (meta ?? {}) as { readonly description?: string }
      return { name, description }
    }),
  )
}

async function run(given: readonly string[]): Promise<void> {
  const argv = await withOwnFlags(given)
  const { command, name, words } = await resolveCommand(argv)
  const wantsHelp = argv.includes('--help') || argv.includes('-h')
  if (wantsHelp || (!command.run && argv.every((word) => !word.startsWith('--v')))) {
    const page = { name, command, children: await childrenOf(command) }
    process.stdout.write(`${renderHelp(page, process.stdout.columns)}\n`)
    const named = words.find((word) => !word.startsWith('-'))
    if (!wantsHelp && named) throw new SkeinError('invalid_request', `no command "${named}"`)
    return
  }
  if (argv.includes('--version') || argv[0] === '-v') {
    process.stdout.write(`skein ${packageVersion()}\n`)
    return
  }
  refuseUnknownFlags(command, argv)
  try {
    // `serve` takes any number of models.
    if (argv[0] !== 'serve') refuseStrayWords(command, words)
    await runCommand(main, { rawArgs: argv })
  } catch (error) {
    throw isUsageError(error)
      ? new SkeinError('invalid_request', `${error.message}; see --help`)
      : error
  }
}

/** citty's own complaint, of an argument that is missing or not one of its choices. */
function isUsageError(error: unknown): error is Error {
  return error instanceof Error && error.name === 'CLIError'
}

/** What the operating system refused: a file that is not there, or a folder in its place. */
function isSystemError(error: unknown): boolean {
  return error instanceof Error && 'syscall' in error
}

/** `serve` is also started with the flags of the servers it replaces. */
async function withOwnFlags(given: readonly string[]): Promise<string[]> {
  const [command, ...rest] = given
  if (command !== 'serve') return [...given]
  const { switchesOfServe } = await import('./serve.ts')
  const { argv, notes } = rewriteForeignFlags(rest, switchesOfServe)
  for (const note of notes) process.stderr.write(`skein: ${note}\n`)
  return [command, ...argv]
}

// Whoever reads the output may have enough of it: `skein inspect FILE | head`. What a server prints is not its work: in
// `skein serve 2>&1 | tee log` Ctrl-C ends tee first, and the streams are still to be finished.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (process.argv[2] === 'serve') return
  if (error.code !== 'EPIPE') throw error
  process.exit(0)
})
// A pipe without its other end, a terminal that was closed, a full disk: there is nobody left to tell.
process.stderr.on('error', () => {})

run(process.argv.slice(2)).catch((error: unknown) => {
  const { code, message } = SkeinError.from(error)
  const isOurs = code === 'internal' && !isSystemError(error)
  process.stderr.write(`skein: ${message}${isOurs ? ' (internal error)' : ''}\n`)
  if (code === 'internal' && error instanceof Error && process.env.SKEIN_DEBUG)
    process.stderr.write(`${error.stack}\n`)
  process.exitCode = 1
})
