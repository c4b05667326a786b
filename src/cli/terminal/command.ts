/**
 * Describes a command of `skein` as a plain object and adds it to commander. Arguments and flags are declared once
 * (settings/flags.ts), values arrive checked and typed, and every error is one line. Commander parses, suggests and
 * wraps help.
 */
import { Command, type CommanderError, Help, Option } from 'commander'
import { SkeinError } from '../../errors.ts'
import type { Flag, Flags, Words } from '../../settings/flags.ts'
import { parseValues, type Raw, type Values } from '../../settings/values.ts'

type WordValues<W extends Words> = {
  readonly [N in keyof W]: W[N] extends { readonly isRequired: true } ? string : string | undefined
}

/** The input of a command: the values of its flags and arguments, by name. */
type Run<F extends Flags, W extends Words> = {
  readonly args: Values<F> & WordValues<W>
  /** All arguments that are no flags. */
  readonly words: readonly string[]
  /** The flags that were given, as text. */
  readonly given: ReadonlyMap<string, Raw>
}

export interface CommandSpec {
  /** Absent if commands.ts has it. */
  readonly description?: string | undefined
  /** Example command lines, each with a remark. */
  readonly examples?: readonly (readonly [line: string, does: string])[] | undefined
  readonly words: Words
  readonly flags: Flags
  readonly commands: Readonly<Record<string, CommandSpec>>
  run: ((given: Run<Flags, Words>) => void | Promise<void>) | null
}

interface Definition<F extends Flags, W extends Words> {
  readonly description?: string
  readonly examples?: CommandSpec['examples']
  readonly words?: W
  readonly flags?: F
  run(given: Run<F, W>): void | Promise<void>
}

export function defineCommand<const F extends Flags, const W extends Words>(definition: Definition<F, W>): CommandSpec {
  // Commander's values are parsed by these flags, so run() gets the types that it declares.
  const run = definition.run as unknown as NonNullable<CommandSpec['run']>
  return { words: {}, flags: {}, commands: {}, ...definition, run }
}

export function defineCommands(commands: CommandSpec['commands'], examples: CommandSpec['examples'] = []): CommandSpec {
  return { words: {}, flags: {}, commands, examples, run: null }
}

const LEAST_WIDTH = 60
const MOST_WIDTH = 110

/** Commander that neither prints nor exits by itself; `columns` is the terminal's width. */
export function newProgram(name: string, columns = process.stdout.columns ?? 100): Command {
  const width = Math.min(MOST_WIDTH, Math.max(LEAST_WIDTH, columns))
  const program = new Command(name)
  program.exitOverride().helpCommand(false).showSuggestionAfterError()
  program.configureOutput({ writeErr: () => {}, getOutHelpWidth: () => width, getOutHasColors: () => false })
  program.configureHelp({
    minWidthToWrap: LEAST_WIDTH / 3,
    optionTerm: ({ flags }) => flags.replace(/[<>]/g, ''),
    argumentTerm: (argument) => argument.name(),
    visibleOptions: (command) =>
      // --help is of no use in help.
      Help.prototype.visibleOptions.call(new Help(), command).filter(({ long }) => long !== '--help'),
  })
  return program
}

export function equip(command: Command, spec: CommandSpec, argv: readonly string[] = []): void {
  command.helpCommand(false)
  if (spec.description !== undefined) command.description(spec.description)
  addExamples(command, spec.examples ?? [])
  for (const [name, own] of Object.entries(spec.commands)) equip(command.command(name), own, argv)
  for (const [name, { hint, isRequired, isMany, description }] of Object.entries(spec.words)) {
    const word = (hint ?? name.toUpperCase()) + (isMany === true ? '...' : '')
    command.argument(isRequired === true ? `<${word}>` : `[${word}]`, description)
  }
  const seen = new Set<string>()
  const given = new Map<string, Raw>()
  for (const [name, flag] of Object.entries(spec.flags)) {
    const take = (value: Raw) => {
      // Commander would silently keep only the last one.
      if (seen.has(name))
        throw usage(`--${name} is given twice; where several values are taken, put commas between`, name)
      seen.add(name)
      given.set(name, value)
    }
    addFlag(command, name, flag, take, argv)
  }
  const { run } = spec
  if (run === null) return
  command.action(async () => {
    const words = command.args
    const names = Object.keys(spec.words)
    const named = Object.fromEntries(names.map((name, i) => [name, words[i]]))
    const values = parseValues(spec.flags, Object.fromEntries(given))
    // The names of flags and arguments differ, so each has the type of its own kind.
    const args = { ...values, ...named } as Run<Flags, Words>['args']
    await run({ args, words, given })
  })
}

/** A switch can be negated, for when a variable or the configuration file turns it on. */
function addFlag(
  command: Command,
  name: string,
  { kind, description, default: otherwise, hint, short, isRequired, isDeniable, group }: Flag,
  take: (value: Raw) => void,
  argv: readonly string[],
): void {
  const isSwitch = kind.type === 'switch'
  const opposite = name.startsWith('no-') ? name.slice('no-'.length) : `no-${name}`
  const value = isSwitch ? '' : ` <${hint ?? HINTS[kind.type]}>`
  const isTold = otherwise === undefined || otherwise === '' || /default/.test(description)
  const about = isTold ? description : `${description} (default ${otherwise})`
  const option = new Option(`${short ? `-${short}, ` : ''}--${name}${value}`, about)
  if (isRequired === true) option.makeOptionMandatory()
  command.addOption(option.helpGroup(`${group ?? 'Flags'}:`))
  command.on(`option:${name}`, (given: string | null) => {
    if (isSwitch) return take(true)
    // A value may begin with "--" only if it is joined to the flag with "=".
    if (given?.startsWith('--') && !argv.includes(`--${name}=${given}`)) throw usage(`--${name} needs a value`, name)
    take(given ?? '')
  })
  if (!isSwitch && isDeniable !== true) return
  command.addOption(new Option(`--${opposite}`).hideHelp())
  command.on(`option:${opposite}`, () => take(false))
}

const HINTS = {
  text: 'VALUE',
  path: 'FILE',
  switch: '',
  number: 'N',
  integer: 'N',
  choice: 'CHOICE',
  list: 'VALUE,…',
  integers: 'N,…',
  paths: 'NAME=FILE,…',
} as const

export function addExamples(command: Command, examples: readonly (readonly [string, string])[]): void {
  if (examples.length === 0) return
  const longest = Math.max(...examples.map(([line]) => line.length))
  const lines = examples.map(([line, does]) => `  ${line.padEnd(longest)}  # ${does}`)
  command.addHelpText('after', ['', 'Examples:', ...lines].join('\n'))
}

/** Commander's error in Skein's words; null for help and version, which are already printed. */
export function complaintOf(error: CommanderError, program: Command): SkeinError | null {
  const [, name = ''] = /'(.+?)'/.exec(error.message) ?? []
  const [, similar] = /\(Did you mean (.+?)\?\)/.exec(error.message) ?? []
  switch (error.code) {
    case 'commander.unknownOption':
      return unknown(`unknown flag ${name}`, similar ?? longerFlag(name, program))
    case 'commander.unknownCommand':
      return similar === undefined ? noCommand(name, program) : unknown(`no command "${name}"`, similar)
    case 'commander.excessArguments':
      return usage(`unexpected argument "${strayOf(program)}"`)
    case 'commander.missingArgument':
      return missing(name, wordsOf(program).find((word) => word.name() === name)?.description)
    case 'commander.missingMandatoryOptionValue':
      return missingFlag(name.replace(/ .*/, ''), program)
    case 'commander.optionMissingArgument':
      return usage(`${name.replace(/^-\w, | <.*/g, '')} needs a value`)
    default:
      return error.exitCode === 0 || error.code === 'commander.help'
        ? null
        : usage(error.message.replace(/^error: /, ''))
  }
}

function noCommand(name: string, program: Command): SkeinError {
  const group = program.commands.find(({ commands }) => commands.length > 0)
  if (group === undefined) return usage(`no command "${name}"`)
  const all = group.commands.map((command) => command.name()).join(', ')
  return new SkeinError('invalid_request', `no command "${group.name()} ${name}"; there are ${all}`)
}

function missingFlag(flag: string, program: Command): SkeinError {
  return missing(flag, optionsOf(program).find(({ long, mandatory }) => long === flag && mandatory)?.description)
}

/** Of the command and those below it; only the one that was asked for is loaded. */
function commandsOf(command: Command): Command[] {
  return [command, ...command.commands.flatMap(commandsOf)]
}

const optionsOf = (program: Command) => commandsOf(program).flatMap(({ options }) => options)
const wordsOf = (program: Command) => commandsOf(program).flatMap(({ registeredArguments }) => registeredArguments)

/** "--model-name" for "--model". */
function longerFlag(name: string, program: Command): string | undefined {
  const longer = optionsOf(program).filter(({ long, hidden }) => !hidden && long?.startsWith(`${name}-`))
  return longer.length === 1 ? longer[0]!.long : undefined
}

function missing(what: string, about: string | undefined): SkeinError {
  return about ? new SkeinError('invalid_request', `${what} is missing: ${about}`) : usage(`${what} is missing`)
}

function strayOf(command: Command): string {
  const child = command.commands.find(({ args }) => args.length > 0)
  return child === undefined ? (command.args[command.registeredArguments.length] ?? '') : strayOf(child)
}

function unknown(message: string, similar: string | undefined): SkeinError {
  if (similar === undefined) return usage(message)
  const hint = `did you mean ${similar.replace('one of ', '')}?`
  return new SkeinError('invalid_request', `${message}; ${hint}`)
}

function usage(message: string, param?: string): SkeinError {
  return new SkeinError('invalid_request', `${message}; see --help`, param === undefined ? {} : { param })
}
