import { describe, expect, test } from 'vitest'
import { ENTRIES, entryOf, programOf } from '../../src/cli/commands.ts'
import { scriptFor } from '../../src/cli/completion.ts'
import { defineCommand, equip, newProgram } from '../../src/cli/terminal/command.ts'
import { text, toggle, whole } from '../../src/settings/flags.ts'
import { SETTINGS } from '../../src/settings/table.ts'

async function helpOf(name: string, columns = 100): Promise<string> {
  const program = await programOf([entryOf(name)!], { columns })
  return program.commands.find((command) => command.name() === name)!.helpInformation()
}

describe('skein serve --help', () => {
  test('has every flag, once, under a heading', async () => {
    const help = await helpOf('serve')
    for (const flag of Object.keys(SETTINGS)) expect(help.split(new RegExp(`\\n  --${flag} `)), flag).toHaveLength(2)
    expect(help.match(/^\S.*:$/gm)).toEqual([
      'Arguments:',
      'Network and access:',
      'The model:',
      'Several models and workers:',
      'Load and memory:',
      'Sessions and kept states (docs/states.md):',
      'Cluster (docs/cluster.md):',
      'Operation:',
    ])
  })

  test.each([60, 80, 100])('fits into %i columns', async (columns) => {
    for (const line of (await helpOf('serve', columns)).split('\n'))
      expect(line.length, line).toBeLessThanOrEqual(columns)
  })

  test('says what an omitted value means, and no default twice', async () => {
    const help = await helpOf('serve', 110)
    expect(help).toMatch(/--port N +Port; 0 picks a free one \(default 8000\)/)
    expect(help).toMatch(/--backend VALUE +Older name of --device/)
    expect(help.match(/default/g)!.length).toBeGreaterThan(10)
  })
})

describe('flags', () => {
  const ran: unknown[] = []
  const command = defineCommand({
    words: { file: { description: 'a file' } },
    flags: {
      prompt: text('a text', { short: 'p' }),
      port: whole(0, 65_535)('a port', { default: '1' }),
      json: toggle('a switch'),
      'no-store': toggle('another'),
    },
    run({ args, given }) {
      ran.push({ ...args, given: Object.fromEntries(given) })
    },
  })
  const parse = async (...argv: string[]) => {
    const program = newProgram('test')
    equip(program, command, argv)
    await program.parseAsync(argv, { from: 'user' })
    return ran.at(-1)
  }

  test('become values of their types', async () => {
    expect(await parse('a.pth', '-p', 'Once upon', '--port=8', '--no-store')).toMatchObject({
      ...{ file: 'a.pth', prompt: 'Once upon', port: 8, json: false, 'no-store': true },
      given: { prompt: 'Once upon', port: '8', 'no-store': true },
    })
    expect(await parse('--no-json', '--store', '--port=')).toMatchObject({
      ...{ port: 1, json: false, 'no-store': false },
      given: { json: false, 'no-store': false, port: '' },
    })
  })

  test('given twice are refused, because all but the last would have no effect', async () => {
    await expect(parse('--prompt', 'a', '--prompt=b')).rejects.toThrow('--prompt is given twice')
    await expect(parse('--json', '--no-json')).rejects.toThrow('--json is given twice')
    expect(await parse('--prompt', 'a', '--', '--prompt')).toMatchObject({ file: '--prompt' })
  })

  test('without their value are refused, not set to their default', async () => {
    await expect(parse('--port', '--json')).rejects.toThrow('--port needs a value')
    await expect(parse('--json', '--port')).rejects.toThrow('argument missing')
    await expect(parse('--port', '-1')).rejects.toThrow('--port takes a number from 0')
    expect(await parse('--prompt=--json')).toMatchObject({ prompt: '--json' })
  })
})

test('every command is listed once, and its completion script knows its flags', async () => {
  const program = await programOf([entryOf('keys')!, entryOf('list')!])
  const help = program.helpInformation()
  expect(help).toMatch(/^Models:\n {2}pull .*\n {2}ls\|list /m)
  const script = scriptFor('bash', program)
  expect(script).toMatch(/'keys add'\) words='--role --rpm /)
  expect(script).toMatch(/'list'\) words='--json'/)
  expect(scriptFor('fish', program)).toContain("-l expires -d 'Expires after this time: 12h, 30d'")
})

test('every command has example lines', async () => {
  const specs = await Promise.all(ENTRIES.map(async (entry) => [entry.name, await entry.load()] as const))
  const leaves = specs.flatMap(([name, spec]) => {
    const own = Object.entries(spec.commands)
    return own.length === 0 ? [[name, spec] as const] : own.map(([word, one]) => [`${name} ${word}`, one] as const)
  })
  for (const [name, { examples = [] }] of leaves)
    expect(
      examples.map(([line]) => line.includes(`skein ${name}`)),
      name,
    ).toContain(true)
})
