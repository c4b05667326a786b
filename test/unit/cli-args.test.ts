import type { CommandDef } from 'citty'
import { describe, expect, test } from 'vitest'
import {
  engineChoice,
  refuseStrayWords,
  refuseUnknownFlags,
  startStates,
} from '../../src/cli/args.ts'
import { serverUrl } from '../../src/cli/chat.ts'
import { hosted } from '../../src/cli/hosting-args.ts'
import { loadRunner } from '../../src/load.ts'

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

test('--gpus is a choice of devices, and takes no other', () => {
  const given = (args: object) => () => hosted({ _: ['m.pth'], host: '127.0.0.1', ...args })
  expect(given({ gpus: '0,1', device: 'cuda' })().gpus).toEqual([0, 1])
  expect(given({ gpus: '0,1' })().gpus).toEqual([0, 1])
  for (const device of ['cpu', 'cuda:1'])
    expect(given({ gpus: '0', device })).toThrow(`--gpus and --device ${device} exclude each other`)
  expect(given({ gpus: '0,0' })).toThrow('twice')
})

describe('--pp-devices', () => {
  const devices = (given: string, more = {}) =>
    engineChoice({ 'pp-devices': given, ...more }).ppDevices

  test('takes numbers of GPUs and names of devices', () => {
    expect(devices('0,1, 3')).toEqual(['cuda:0', 'cuda:1', 'cuda:3'])
    expect(devices('cuda:1,cpu')).toEqual(['cuda:1', 'cpu'])
    expect(engineChoice({}).ppDevices).toBeUndefined()
  })

  test.each(['0', '0,', 'x,1', 'auto,0', '-1,0'])('%s is refused', (given) => {
    expect(() => devices(given)).toThrow('--pp-devices takes two devices or more')
  })

  test('excludes --device', () => {
    expect(() => devices('0,1', { device: 'cuda:0' })).toThrow('leave --device out')
  })
})

test('--memory-gb is in decimal gigabytes, and refused where no GPU is meant', () => {
  expect(engineChoice({ 'memory-gb': '1.5' }).memoryBytes).toBe(1_500_000_000)
  expect(() => engineChoice({ 'memory-gb': '0' })).toThrow('--memory-gb takes a number from 0.001')
  const choice = engineChoice({ 'memory-gb': '1', device: 'cpu' })
  expect(() => loadRunner(choice)).toThrow('--memory-gb needs --device cuda, not cpu')
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

test('a flag without its value is refused, not given its default', () => {
  const args = { port: { type: 'string', default: '1' }, json: { type: 'boolean' } } as const
  const command = { args } as unknown as CommandDef<never>
  const check = (...argv: string[]) => refuseUnknownFlags(command, argv)
  expect(() => check('--json', '--port', '-1')).not.toThrow()
  expect(() => check('--port=', '--no-json')).not.toThrow()
  expect(() => check('--no-port')).not.toThrow()
  expect(() => check('--json', '--port')).toThrow('--port needs a value')
  expect(() => check('--port', '--json')).toThrow('--port needs a value')
})

test('a word that nothing takes is refused', () => {
  const args = {
    file: { type: 'positional', required: false },
    prompt: { type: 'string', alias: 'p' },
    json: { type: 'boolean' },
  } as const
  const command = { args } as unknown as CommandDef<never>
  const check = (...words: string[]) => refuseStrayWords(command, words)
  expect(() => check('a.pth', '--json', '-p', 'Once upon', '--prompt=x')).not.toThrow()
  expect(() => check('--json', 'a.pth')).not.toThrow()
  expect(() => check('a.pth', 'Once upon')).toThrow('nothing takes the word "Once upon"')
})

test.each([
  ['http://127.0.0.1:8000', 'http://127.0.0.1:8000'],
  ['localhost:9000/', 'http://localhost:9000'],
  ['https://chat.example.com/v1/', 'https://chat.example.com'],
])('skein chat --url %s means %s', (given, url) => {
  expect(serverUrl(given)).toBe(url)
})
