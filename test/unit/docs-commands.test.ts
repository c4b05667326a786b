/** Every line with `skein` in the documentation and in `--help` is accepted by its command. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeAll, expect, test } from 'vitest'
import { ENTRIES, entryOf } from '../../src/cli/commands.ts'
import { type CommandSpec, equip, newProgram } from '../../src/cli/terminal/command.ts'
import { rewriteForeignFlags } from '../../src/settings/foreign-flags.ts'
import { PAGES, ROOT } from '../helpers/pages.ts'

/** The changelog also has old commands. */
const CURRENT = PAGES.filter((page) => page !== 'CHANGELOG.md')

const specs = new Map<string, CommandSpec>()
beforeAll(async () => {
  for (const { name, load } of ENTRIES) specs.set(name, idle(await load()))
})

/** The same command, without effect. */
function idle(spec: CommandSpec): CommandSpec {
  const commands = Object.entries(spec.commands).map(([name, own]) => [name, idle(own)] as const)
  return { ...spec, commands: Object.fromEntries(commands), run: spec.run === null ? null : () => {} }
}

/** Commands in code blocks. */
function linesOf(text: string): string[] {
  const blocks = [...text.matchAll(/^( *)```(\w*)\n([\s\S]*?)^\1```/gm)]
  const ours = blocks.filter(([, , language]) => ['', 'sh', 'bash', 'console'].includes(language!))
  const indented = [...text.matchAll(/(?:^ {4}.*\n)+/gm)].map(([code]) => code)
  return [...ours.map(([, , , code]) => code!), ...indented].flatMap(commandsOf)
}

/** Commands in sentences, mostly without all required arguments. */
function mentionsOf(text: string): string[] {
  const quoted = text.replace(/```[\s\S]*?```/g, '').matchAll(/`([^`\n]+)`/g)
  return [...quoted].flatMap(([, code]) => commandsOf(code!))
}

function commandsOf(code: string): string[] {
  return code
    .replaceAll('\\\n', ' ')
    .split('\n')
    .map((line) => line.replace(/(?:^|\s)#.*$/, ''))
    .flatMap((line) => line.split(/\s(?:&&|\|\|?|[<>&]+)\s?|\s*;\s*|\$\(/))
    .flatMap((command) => {
      const own = /^\W*(?:\w+=\S+ |sudo |npx |setsid |do )*skein ([a-z].*)$/.exec(` ${command}`.trim())
      return own === null ? [] : [own[1]!.replace(/ done$/, '')]
    })
}

function wordsOf(line: string): string[] {
  return [...line.matchAll(/(?:'[^']*'|"[^"]*"|[^\s'"])+/g)]
    .map(([word]) => word.replace(/['"]/g, '').replace(/^\[|\]$/g, ''))
    .map((word) => word.replace(/\$\w+/g, '1'))
    .filter((word) => word !== '…')
}

/** The error of the command for a line, or null. */
async function complaint(line: string): Promise<string | null> {
  const [name, ...rest] = wordsOf(line)
  if (rest.at(-1) === '--help') return null
  const spec = specs.get(entryOf(name)?.name ?? '')
  if (spec === undefined) return 'no such command'
  const argv = ownFlags(name!, rest)
  const program = newProgram('skein')
  equip(program, spec, argv)
  try {
    await program.parseAsync(argv, { from: 'user' })
    return null
  } catch (error) {
    return (error as Error).message
  }
}

function unknownFlag(line: string): string | null {
  const [name, ...rest] = wordsOf(line)
  const spec = specs.get(entryOf(name)?.name ?? '')
  if (spec === undefined) return 'no such command'
  const [first = '', ...others] = ownFlags(name!, rest)
  const flags = { ...spec.flags, ...spec.commands[first]?.flags, help: true }
  const isKnown = (word: string) => {
    const flag = word.slice(2).replace(/=.*/, '')
    return flag in flags || flag.replace(/^no-/, '') in flags
  }
  return [first, ...others].find((word) => word.startsWith('--') && !isKnown(word)) ?? null
}

function ownFlags(name: string, argv: readonly string[]): readonly string[] {
  return name === 'serve' ? rewriteForeignFlags(argv).argv : argv
}

test.each(CURRENT)('the commands of %s', async (page) => {
  const text = readFileSync(join(ROOT, page), 'utf8')
  const wrong: string[] = []
  for (const line of linesOf(text)) {
    const found = line.includes('…') ? unknownFlag(line) : await complaint(line)
    if (found !== null) wrong.push(`skein ${line}: ${found}`)
  }
  for (const line of mentionsOf(text)) {
    const found = unknownFlag(line)
    if (found !== null) wrong.push(`skein ${line}: ${found}`)
  }
  expect(wrong).toEqual([])
})

test('the example lines of every command', async () => {
  const all = [...specs.values()].flatMap((spec) => [spec, ...Object.values(spec.commands)])
  const lines = all.flatMap(({ examples = [] }) => examples.flatMap(([line]) => commandsOf(line)))
  expect(lines.length).toBeGreaterThan(40)
  for (const line of lines) expect(await complaint(line), line).toBeNull()
})

test('a wrong line is found', async () => {
  expect(linesOf('```sh\nFOO=1 npx skein serve a.pth --porf 8 # x\n```')).toEqual(['serve a.pth --porf 8'])
  expect(await complaint('serve a.pth --porf 8')).toMatch(/--porf/)
  expect(await complaint('serve a.pth --port x')).toMatch(/--port/)
})
