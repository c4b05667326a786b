import { describe, expect, test } from 'vitest'
import { serverUrl } from '../../src/cli/remote.ts'
import { loadRunner } from '../../src/host/load.ts'
import { engineChoice } from '../../src/settings/engine-choice.ts'
import { launchesOf } from '../../src/settings/models.ts'
import { SETTINGS } from '../../src/settings/table.ts'
import { parseValues, type RawValues } from '../../src/settings/values.ts'

const valuesOf = (raw: RawValues) => parseValues(SETTINGS, raw)
const choiceOf = (raw: RawValues) => engineChoice(valuesOf(raw))

describe('--state', () => {
  test.each([
    [undefined, undefined],
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
    expect(valuesOf({ state }).state).toEqual(expected)
  })

  test.each(['=a.pth', 'poet=', 'a=b.pth,', ','])('%s is refused', (state) => {
    expect(() => valuesOf({ state })).toThrow('--state takes NAME=FILE pairs')
  })
})

test('--gpus accepts only a list of GPUs', () => {
  const given = (raw: RawValues) => () => launchesOf([{ file: 'm.pth' }], valuesOf(raw))
  const gpusOf = (raw: RawValues) => given(raw)().map(({ spec }) => spec.gpu_id)
  expect(gpusOf({ gpus: '0,1', device: 'cuda' })).toEqual([0, 1])
  expect(gpusOf({ gpus: '0,1' })).toEqual([0, 1])
  for (const device of ['cpu', 'cuda:1'])
    expect(given({ gpus: '0', device })).toThrow(`--gpus and --device ${device} exclude each other`)
  expect(given({ gpus: '0,0' })).toThrow('twice')
})

describe('--pp-devices', () => {
  const devices = (given: string, more = {}) => choiceOf({ 'pp-devices': given, ...more }).ppDevices

  test('takes numbers of GPUs and names of devices', () => {
    expect(devices('0,1, 3')).toEqual(['cuda:0', 'cuda:1', 'cuda:3'])
    expect(devices('cuda:1,cpu')).toEqual(['cuda:1', 'cpu'])
    expect(choiceOf({}).ppDevices).toBeUndefined()
  })

  test.each(['0', '0,', 'x,1', 'auto,0', '-1,0'])('%s is refused', (given) => {
    expect(() => devices(given)).toThrow('--pp-devices takes two devices or more')
  })

  test('excludes --device', () => {
    expect(() => devices('0,1', { device: 'cuda:0' })).toThrow('leave --device out')
  })
})

test('--memory-gb is in decimal gigabytes, and is refused without a GPU', () => {
  expect(choiceOf({ 'memory-gb': '1.5' }).memoryBytes).toBe(1_500_000_000)
  expect(() => choiceOf({ 'memory-gb': '0' })).toThrow('--memory-gb takes a number from 0.001')
  const choice = choiceOf({ 'memory-gb': '1', device: 'cpu' })
  expect(() => loadRunner(choice)).toThrow('--memory-gb needs --device cuda, not cpu')
})

test.each([
  ['http://127.0.0.1:8000', 'http://127.0.0.1:8000'],
  ['localhost:9000/', 'http://localhost:9000'],
  [':9000', 'http://127.0.0.1:9000'],
  ['https://chat.example.com/v1/', 'https://chat.example.com'],
])('skein chat --url %s means %s', (given, url) => {
  expect(serverUrl(given)).toBe(url)
})

test.each(['my server', 'ftp://host', 'http://', ''])('--url "%s" is refused', (given) => {
  expect(() => serverUrl(given)).toThrow('--url takes a URL like http://127.0.0.1:8000')
})
