/**
 * Lists the commands of `skein` in the order of the help. A command's module is loaded only when the command is used.
 */
import type { Command } from 'commander'
import { packageVersion } from '../files/version.ts'
import { addExamples, type CommandSpec, equip, newProgram } from './terminal/command.ts'

interface Entry {
  readonly name: string
  /** Names that other tools use for it. */
  readonly aliases: readonly string[]
  /** Heading in `skein --help`. */
  readonly group: string
  readonly about: string
  load(): Promise<CommandSpec>
}

type Row = readonly [about: string, load: Entry['load'], ...aliases: string[]]

const GROUPS: Readonly<Record<string, Readonly<Record<string, Row>>>> = {
  Serve: {
    serve: [
      'Serve a model over HTTP (without FILE: the demo model, or none on a public --host)',
      async () => (await import('./serve.ts')).serve,
    ],
    gateway: [
      'One address in front of many servers (docs/cluster.md)',
      async () => (await import('./gateway.ts')).gateway,
    ],
    ps: ['List the models of a running server', async () => (await import('./remote.ts')).ps],
    stop: ['Stop a model of a running server', async () => (await import('./remote.ts')).stop],
    keys: ['Named keys of a server: add, list, change, rotate, revoke', async () => (await import('./keys.ts')).keys],
    config: ['The configuration file: check, schema', async () => (await import('./config.ts')).config],
  },
  Use: {
    run: ['Download a model if needed, and chat with it', async () => (await import('./chat/chat.ts')).run],
    chat: [
      'Chat in the terminal with a running server, or with FILE without a server',
      async () => (await import('./chat/chat.ts')).chat,
    ],
    generate: ['Continue a text without a server', async () => (await import('./generate.ts')).generate],
    launch: [
      'Connect another program to a server: openai, Claude Code, Continue, Zed, …',
      async () => (await import('./launch/launch.ts')).launch,
    ],
  },
  Models: {
    pull: [
      'Download a model and its vocabulary (HF_ENDPOINT names a mirror)',
      async () => (await import('./models/pull.ts')).pull,
    ],
    ls: ['List the downloaded models', async () => (await import('./models/pull.ts')).ls, 'list'],
    rm: ['Remove a downloaded model', async () => (await import('./models/pull.ts')).rm],
    inspect: [
      'Describe a checkpoint: architecture, sizes, problems',
      async () => (await import('./models/inspect.ts')).inspect,
      'show',
    ],
    convert: ['Write a checkpoint as .pth or .safetensors', async () => (await import('./models/convert.ts')).convert],
    quantize: [
      'Write a checkpoint with its matrices in 8 or 4 bits',
      async () => (await import('./models/convert.ts')).quantize,
    ],
  },
  'Measure and check': {
    doctor: ['Report what this machine can run and what is missing', async () => (await import('./doctor.ts')).doctor],
    bench: [
      'Measure this machine or a server: engine, ops, quality, device, tokenizer, serve',
      async () => (await import('./bench/bench.ts')).bench,
    ],
    logits: [
      'Write the logits after a list of tokens as raw little-endian float32',
      async () => (await import('./logits.ts')).logits,
    ],
    tokenize: [
      'Print the token ids of a file, or of standard input with -',
      async () => (await import('./tokenize.ts')).tokenize,
    ],
    completion: [
      'Print a completion script for your shell',
      async () => (await import('./completion.ts')).completionOf(() => programOf(ENTRIES)),
    ],
  },
}

export const ENTRIES: readonly Entry[] = Object.entries(GROUPS).flatMap(([group, rows]) =>
  Object.entries(rows).map(([name, [about, load, ...aliases]]) => ({ name, aliases, group, about, load })),
)

const EXIT_CODES = 'Exit codes: 0 done, 1 failed, 2 the command line or the configuration is wrong, 130 interrupted.'

export function entryOf(word: string | undefined): Entry | undefined {
  return ENTRIES.find(({ name, aliases }) => name === word || aliases.includes(word ?? ''))
}

/** The program with the names of all commands; the given commands also have their flags. */
export async function programOf(
  named: readonly Entry[],
  { argv = [], columns }: { readonly argv?: readonly string[]; readonly columns?: number } = {},
): Promise<Command> {
  const program = newProgram('skein', columns)
  program.description('An RWKV inference server: many streams at once, speaking the OpenAI API.')
  program.version(`skein ${packageVersion()}`, '-v, --version', 'Print the version')
  addExamples(program, [
    ['skein serve', 'the demo model and a dashboard, at http://127.0.0.1:8000'],
    ['skein chat', 'chat with it, from another terminal'],
    ['skein run rwkv7-g1-0.4b', 'download a model and chat with it'],
    ['skein serve MODEL.pth', 'a model of your own'],
  ])
  program.addHelpText('after', `\n${EXIT_CODES}`)
  for (const entry of ENTRIES) {
    const { name, aliases, group, about } = entry
    const command = program.command(name).aliases(aliases).description(about)
    command.helpGroup(`${group}:`)
    if (named.includes(entry)) equip(command, await entry.load(), argv)
  }
  return program
}
