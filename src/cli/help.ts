/**
 * What --help prints: the commands of `skein` in the order in which one meets them, and the flags of a command in groups, as
 * wide as the terminal. It knows citty's definitions and runs nothing.
 */
import type { ArgsDef, CommandDef } from 'citty'
import { HELP_GROUPS } from './help-groups.ts'
import { packageVersion } from './version.ts'

const LEAST_WIDTH = 60
const MOST_WIDTH = 110
/** Longer names of flags have their description below them. */
const NAME_WIDTH = 26

export interface HelpPage {
  /** "skein bench serve" */
  readonly name: string
  readonly command: CommandDef<never>
  readonly children: readonly HelpCommand[]
}

export interface HelpCommand {
  readonly name: string
  readonly description: string
}

/** A heading and the names below it; what is in no group comes last. */
export interface HelpGroup {
  readonly title: string
  readonly names: readonly string[]
}

export interface HelpTexts {
  readonly examples: readonly (readonly [string, string])[]
  readonly groups: readonly HelpGroup[]
}

const NOTHING: HelpTexts = { examples: [], groups: [] }

export function renderHelp({ name, command, children }: HelpPage, columns = 100): string {
  const width = Math.min(MOST_WIDTH, Math.max(LEAST_WIDTH, columns))
  const { examples, groups } = HELP_GROUPS[name] ?? NOTHING
  // citty allows functions and promises here; ours are plain objects.
  const meta = (command.meta ?? {}) as { readonly description?: string }
  const args = Object.entries((command.args ?? {}) as ArgsDef)
  const words = args.filter(([, { type }]) => type === 'positional')
  const flags = args.filter(([, { type }]) => type !== 'positional')
  const usage = [name, ...words.map(placeOf), ...(flags.length > 0 ? ['[--flag …]'] : [])]
  const blocks = [
    ...wrap(meta.description ?? '', width),
    '',
    `usage: ${children.length > 0 ? `${name} COMMAND` : usage.join(' ')}`,
    ...exampleLines(examples),
    ...sections(grouped(words.map(wordRow), [], 'Arguments'), width),
    ...sections(
      grouped(
        children.map(({ name: own, description }): Row => [own, own, description]),
        groups,
        'Commands',
      ),
      width,
    ),
    ...sections(grouped(flags.map(flagRow), groups, 'Flags'), width),
    ...(children.length > 0 ? ['', `${name} COMMAND --help says more of each.`] : []),
    ...(name === 'skein' ? [`version ${packageVersion()}`] : []),
  ]
  return blocks.join('\n')
}

/** The key by which groups name it, what is printed, and what it means. */
type Row = readonly [key: string, shown: string, description: string]

interface Section {
  readonly title: string
  readonly rows: readonly Row[]
}

function grouped(rows: readonly Row[], groups: readonly HelpGroup[], rest: string): Section[] {
  const taken = groups.map(({ title, names }) => ({
    title,
    rows: names.flatMap((name) => rows.filter(([key]) => key === name)),
  }))
  const named = new Set(groups.flatMap(({ names }) => names))
  const others = rows.filter(([key]) => !named.has(key))
  const title = taken.some((section) => section.rows.length > 0) ? 'Others' : rest
  return [...taken, { title, rows: others }].filter((section) => section.rows.length > 0)
}

function sections(list: readonly Section[], width: number): string[] {
  return list.flatMap(({ title, rows }) => [
    '',
    `${title}`,
    ...rows.flatMap((row) => lines(row, width)),
  ])
}

function lines([, shown, description]: Row, width: number): string[] {
  const indent = ' '.repeat(NAME_WIDTH + 2)
  const wrapped = wrap(description, width - indent.length)
  const [first = '', ...more] = wrapped
  const below = more.map((line) => `${indent}${line}`)
  return shown.length + 4 > indent.length
    ? [`  ${shown}`, ...wrapped.map((line) => `${indent}${line}`)]
    : [`  ${shown.padEnd(NAME_WIDTH)}${first}`, ...below]
}

function exampleLines(examples: HelpTexts['examples']): string[] {
  if (examples.length === 0) return []
  const longest = Math.max(...examples.map(([line]) => line.length))
  return ['', ...examples.map(([line, what]) => `  ${line.padEnd(longest)}  # ${what}`)]
}

function placeOf([name, { required, valueHint }]: [string, ArgsDef[string]]): string {
  const word = valueHint ?? name.toUpperCase()
  return required === true ? word : `[${word}]`
}

function wordRow([name, { valueHint, description = '' }]: [string, ArgsDef[string]]): Row {
  return [name, valueHint ?? name.toUpperCase(), description]
}

function flagRow([name, definition]: [string, ArgsDef[string]]): Row {
  const { type, valueHint, description = '' } = definition
  const given = 'default' in definition ? definition.default : undefined
  const value = type === 'boolean' ? '' : ` ${valueHint ?? 'VALUE'}`
  const isTold = given === undefined || given === false || /default/.test(description)
  return [name, `--${name}${value}`, isTold ? description : `${description} (default ${given})`]
}

function wrap(text: string, width: number): string[] {
  const all: string[] = []
  let line = ''
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > width) {
      all.push(line)
      line = word
    } else line = line === '' ? word : `${line} ${word}`
  }
  return [...all, line]
}
