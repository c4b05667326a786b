import type { CommandDef } from 'citty'
import { describe, expect, test } from 'vitest'
import { refuseUnknownFlags, startStates } from '../../src/cli/args.ts'

describe('--state', () => {
  test.each([
    [undefined, []],
    ['poet=a/poet.pth', [{ name: 'poet', path: 'a/poet.pth' }]],
    [
      'a=1.pth,b=2=3.pth',
      [
        { name: 'a', path: '1.pth' },
        { name: 'b', path: '2=3.pth' },
      ],
    ],
    ['states/tale.v2.pth', [{ name: 'tale.v2', path: 'states/tale.v2.pth' }]],
  ])('%s', (state, expected) => {
    expect(startStates({ state })).toEqual(expected)
  })

  test.each(['=a.pth', 'poet=', 'a=b.pth,', ','])('%s is refused', (state) => {
    expect(() => startStates({ state })).toThrow('--state takes NAME=FILE pairs')
  })
})

test('a flag given twice is refused: all but the last would be without effect', () => {
  const args = { state: { type: 'string' }, json: { type: 'boolean' } } as const
  // What the function takes is any command, whatever the types of its arguments.
  const command = { args } as unknown as CommandDef<never>
  const check = (...argv: string[]) => refuseUnknownFlags(command, argv)
  expect(() => check('--state=a', '--json')).not.toThrow()
  expect(() => check('--state', 'a', '--state=b')).toThrow('--state is given twice')
  expect(() => check('--json', '--no-json')).toThrow('--json is given twice')
  expect(() => check('--state', 'a', '--', '--state', 'b')).not.toThrow()
})
