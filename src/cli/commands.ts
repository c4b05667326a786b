/**
 * Lists the commands of `skein` in the order of the help. A command's module is loaded only when the command is used.
 */
import type { Command } from 'commander'
import { packageVersion } from '../files/version.ts'
import { addExamples, type CommandSpec, equip, newProgram } from './terminal/command.ts'

export interface Entry {
  readonly name: string
  /** Names that other tools use for it. */
  readonly aliases?: readonly string[]
  /** Heading in `skein --help`. */
  readonly group: string
  readonly about: string
  load(): Promise<CommandSpec>
}

export const ENTRIES: readonly Entry[] = [
  {
    name: 'serve',
    group: 'Serve',
    about: 'Serve a model over HTTP (without FILE: the demo model, or none on a public --host)',
    load: async () => (await import('./serve.ts')).serve,
  },
  {
    name: 'gateway',
    group: 'Serve',
    about: 'One address in front of many servers (docs/cluster.md)',
    load: async () => (await import('./gateway.ts')).gateway,
  },
  {
    name: 'ps',
    group: 'Serve',
    about: 'List the models of a running server',
    load: async () => (await import('./remote.ts')).ps,
  },
  {
    name: 'stop',
    group: 'Serve',
    about: 'Stop a model of a running server',
    load: async () => (await import('./remote.ts')).stop,
  },
  {
    name: 'keys',
    group: 'Serve',
    about: 'Named keys of a server: add, list, revoke, rotate',
    load: async () => (await import('./keys.ts')).keys,
  },
  {
    name: 'config',
    group: 'Serve',
    about: 'The configuration file: check, schema',
    load: async () => (await import('./config.ts')).config,
  },
  {
    name: 'run',
    group: 'Use',
    about: 'Download a model if needed, and chat with it',
    load: async () => (await import('./chat/chat.ts')).run,
  },
  {
    name: 'chat',
    group: 'Use',
    about: 'Chat in the terminal with a running server, or with FILE without a server',
    load: async () => (await import('./chat/chat.ts')).chat,
  },
  {
    name: 'generate',
    group: 'Use',
    about: 'Continue a text without a server',
    load: async () => (await import('./generate.ts')).generate,
  },
  {
    name: 'launch',
    group: 'Use',
    about: 'Connect another program to a server: openai, Claude Code, Continue, Zed, …',
    load: async () => (await import('./launch/launch.ts')).launch,
  },
  {
    name: 'pull',
    group: 'Models',
    about: 'Download a model and its vocabulary (HF_ENDPOINT names a mirror)',
    load: async () => (await import('./models/pull.ts')).pull,
  },
  {
    name: 'ls',
    aliases: ['list'],
    group: 'Models',
    about: 'List the downloaded models',
    load: async () => (await import('./models/pull.ts')).ls,
  },
  {
    name: 'rm',
    group: 'Models',
    about: 'Remove a downloaded model',
    load: async () => (await import('./models/pull.ts')).rm,
  },
  {
    name: 'inspect',
    aliases: ['show'],
    group: 'Models',
    about: 'Describe a checkpoint: architecture, sizes, problems',
    load: async () => (await import('./models/inspect.ts')).inspect,
  },
  {
    name: 'convert',
    group: 'Models',
    about: 'Write a checkpoint as .pth or .safetensors',
    load: async () => (await import('./models/convert.ts')).convert,
  },
  {
    name: 'quantize',
    group: 'Models',
    about: 'Write a checkpoint with its matrices in 8 or 4 bits',
    load: async () => (await import('./models/convert.ts')).quantize,
  },
  {
    name: 'doctor',
    group: 'Measure and check',
    about: 'Report what this machine can run and what is missing',
    load: async () => (await import('./doctor.ts')).doctor,
  },
  {
    name: 'bench',
    group: 'Measure and check',
    about: 'Measure this machine or a server: engine, ops, quality, device, tokenizer, serve',
    load: async () => (await import('./bench/bench.ts')).bench,
  },
  {
    name: 'logits',
    group: 'Measure and check',
    about: 'Write the logits after a list of tokens as raw little-endian float32',
    load: async () => (await import('./logits.ts')).logits,
  },
  {
    name: 'tokenize',
    group: 'Measure and check',
    about: 'Print the token ids of a file, or of standard input with -',
    load: async () => (await import('./tokenize.ts')).tokenize,
  },
  {
    name: 'completion',
    group: 'Measure and check',
    about: 'Print a completion script for your shell',
    load: async () => (await import('./completion.ts')).completionOf(() => programOf(ENTRIES)),
  },
]

const EXIT_CODES = 'Exit codes: 0 done, 1 failed, 2 the command line or the configuration is wrong, 130 interrupted.'

export function entryOf(word: string | undefined): Entry | undefined {
  return ENTRIES.find(({ name, aliases = [] }) => name === word || aliases.includes(word ?? ''))
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
    const { name, aliases = [], group, about } = entry
    const command = program.command(name).aliases(aliases).description(about)
    command.helpGroup(`${group}:`)
    if (named.includes(entry)) equip(command, await entry.load(), argv)
  }
  return program
}
