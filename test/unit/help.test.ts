import { describe, expect, test } from 'vitest'
import { renderHelp } from '../../src/cli/help.ts'
import { HELP_GROUPS } from '../../src/cli/help-groups.ts'
import { serve, serveArgs } from '../../src/cli/serve.ts'

const page = { name: 'skein serve', command: serve as never, children: [] }

describe('skein serve --help', () => {
  test('has every flag, once, in a group', () => {
    const flags = Object.keys(serveArgs).filter((name) => name !== 'model')
    const { groups } = HELP_GROUPS['skein serve']!
    expect(groups.flatMap(({ names }) => names).sort()).toEqual(flags.sort())
    const help = renderHelp(page)
    for (const flag of flags) expect(help.split(`\n  --${flag} `)).toHaveLength(2)
    expect(help).not.toContain('Others')
  })

  test.each([60, 80, 100])('fits into %i columns', (columns) => {
    for (const line of renderHelp(page, columns).split('\n')) {
      if (!line.includes('  # ')) expect(line.length, line).toBeLessThanOrEqual(columns)
    }
  })

  test('says what is left out where it is, and no default twice', () => {
    const help = renderHelp(page, 110)
    expect(help).toContain('--port VALUE              Port; 0 takes a free one (default 8000)')
    expect(help).toMatch(/--backend VALUE +Older name of --device/)
    expect(help.match(/default/g)!.length).toBeGreaterThan(10)
  })
})

test('commands are listed in groups; a new one comes under Others', () => {
  const child = (name: string) => ({ name, description: `what ${name} does` })
  const children = ['rm', 'serve', 'juggle'].map(child)
  const help = renderHelp({ name: 'skein', command: {} as never, children })
  expect(help).toMatch(/Serve\n {2}serve .*\n\nModels\n {2}rm .*\n\nOthers\n {2}juggle/)
})
