import { describe, expect, test } from 'vitest'
import { findModelName, isSafePath, newestNamed, parseModelName } from '../../../src/hub/model-names.ts'

const G1 = [
  'README.md',
  'rwkv7-g0-7.2b-20250722-ctx4096.pth',
  'rwkv7-g1-0.4b-20250324-ctx4096.pth',
  'rwkv7-g1a-0.4b-20250905-ctx4096.pth',
  'rwkv7-g1-2.9b-20250519-ctx4096.pth',
  'rwkv7-g1a3-1.5b-20251015-ctx8192.pth',
  'rwkv7-g1b-1.5b-20251202-ctx8192.pth',
  'rwkv7-g1b-1.5b-20251202-ctx16384.pth',
]
const WORLD = [
  'RWKV-x070-World-0.4B-v2.8-20241210-ctx4096.pth',
  'RWKV-x070-World-0.4B-v2.9-20250107-ctx4096.pth',
  'RWKV-x060-World-1B6-v2.1-20240328-ctx4096.pth',
]

describe('short names stand for the newest file of their line and size', () => {
  test.each([
    ['rwkv7-g1-0.4b', 'rwkv7-g1a-0.4b-20250905-ctx4096.pth'],
    ['RWKV7-G1-0.4B', 'rwkv7-g1a-0.4b-20250905-ctx4096.pth'],
    ['rwkv7-g1a-0.4b', 'rwkv7-g1a-0.4b-20250905-ctx4096.pth'],
    ['rwkv7-g1-1.5b', 'rwkv7-g1b-1.5b-20251202-ctx16384.pth'],
    ['rwkv7-g1a3-1.5b', 'rwkv7-g1a3-1.5b-20251015-ctx8192.pth'],
    ['rwkv7-g0-7.2b', 'rwkv7-g0-7.2b-20250722-ctx4096.pth'],
    ['rwkv7-g1-2.9b-20250519-ctx4096', 'rwkv7-g1-2.9b-20250519-ctx4096.pth'],
    ['rwkv7-g1-2.9b-20250519-ctx4096.pth', 'rwkv7-g1-2.9b-20250519-ctx4096.pth'],
    ['rwkv7-world-0.4b', 'RWKV-x070-World-0.4B-v2.9-20250107-ctx4096.pth'],
    ['rwkv6-world-1b6', 'RWKV-x060-World-1B6-v2.1-20240328-ctx4096.pth'],
    ['rwkv6-world-1.6b', 'RWKV-x060-World-1B6-v2.1-20240328-ctx4096.pth'],
  ])('%s', (name, wanted) => {
    expect(newestNamed(name, [...G1, ...WORLD])).toBe(wanted)
  })

  test.each([
    ['rwkv7-g1-7.2b', 'rwkv-g1k-7b-3563.pth'],
    ['rwkv7-g1k-13.3b', 'rwkv-g1k-13b-5228.pth'],
    ['rwkv7-g1i-7.2b', 'rwkv7-g1i-7.2b-20260805-ctx16384.pth'],
    ['rwkv7-g1-1.5b', 'rwkv-g1k-1b-5748.pth'],
    ['rwkv-g1k-3b-5096', 'rwkv-g1k-3b-5096.pth'],
    ['rwkv7-g1-2.9b', 'rwkv-g1k-3b-5096.pth'],
    ['rwkv7-g1-0.1b', 'rwkv7-g1d-0.1b-20260129-ctx8192.pth'],
    ['rwkv7a-g1-0.1b', 'rwkv7a-g1d-0.1b-20260212-ctx8192.pth'],
    ['rwkv7a-g1b-0.1b', 'rwkv7a-g1b-0.1b-20250819-ctx4096.pth'],
    ['rwkv7a-g1d-0.1b-20260212-ctx8192', 'rwkv7a-g1d-0.1b-20260212-ctx8192.pth'],
  ])('%s of 2026', (name, wanted) => {
    const newer = [
      'rwkv7-g1g-7.2b-20260523-ctx8192.pth',
      'rwkv7a-g1b-0.1b-20250819-ctx4096.pth',
      'rwkv7a-g1d-0.1b-20260212-ctx8192.pth',
      'rwkv7b-g1b-0.1b-20250822-ctx4096.pth',
      'rwkv7-g1d-0.1b-20260129-ctx8192.pth',
      'rwkv-g1k-7b-3563.pth',
      'rwkv7-g1i-7.2b-20260805-ctx16384.pth',
      'rwkv-g1k-1b-5748.pth',
      'rwkv-g1k-3b-5096.pth',
      'rwkv-g1k-13b-5228.pth',
    ]
    expect(newestNamed(name, [...G1, ...newer])).toBe(wanted)
    expect(parseModelName(name).repository).toBe('BlinkDL/rwkv7-g1')
  })

  test.each(['rwkv7-g1-13.3b', 'rwkv7-g2-0.4b', 'rwkv7-g1c-0.4b', 'rwkv6-world-0.4b', 'README'])(
    '%s is none of them',
    (name) => {
      expect(newestNamed(name, [...G1, ...WORLD])).toBeUndefined()
    },
  )
})

test.each([
  ['rwkv7-g1-0.4b', 'BlinkDL/rwkv7-g1'],
  ['rwkv7-g0-7.2b', 'BlinkDL/rwkv7-g1'],
  ['RWKV-x070-World-0.4B-v2.9-20250107-ctx4096', 'BlinkDL/rwkv-7-world'],
  ['rwkv6-world-1b6', 'BlinkDL/rwkv-6-world'],
  ['fla-hub/rwkv7-0.4B-world', 'fla-hub/rwkv7-0.4B-world'],
  ['a/b:sub/model.gguf', 'a/b'],
])('%s is searched in %s', (name, repository) => {
  expect(parseModelName(name).repository).toBe(repository)
})

test('RWKV-7b is refused before the download', () => {
  for (const name of ['rwkv7b-g1-0.1b', 'rwkv7b-g1b-0.1b-20250822-ctx4096'])
    expect(() => parseModelName(name)).toThrow('its memory grows with the text')
})

describe('paths that lead elsewhere are no names', () => {
  test.each([
    '',
    'model',
    '../etc/passwd',
    'a/../b',
    '/etc/passwd',
    'a/b/c',
    'a/b:../c.pth',
    'a/b:/etc/passwd',
    'a/b:c/../../d.pth',
    'a/b:.hidden.pth',
    'a/b:c\\d.pth',
    'a/b:c\0.pth',
    '.a/b',
    'https://huggingface.co/a/b',
    'models/demo.pth',
    'rwkv7-g1-0.4b/../../x',
    'rwkv7-g1-\u202e0.4b',
    `a/${'b'.repeat(200)}`,
  ])('%j', (name) => {
    expect(findModelName(name)).toBeUndefined()
    expect(() => parseModelName(name)).toThrow(expect.objectContaining({ code: 'invalid_request' }))
  })

  test.each(['a//b', 'a/', './a', 'a/.', 'CON:', '~', 'a b'])('the path %j', (path) => {
    expect(isSafePath(path)).toBe(false)
  })
})
