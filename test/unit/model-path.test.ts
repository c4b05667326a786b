import { expect, test, vi } from 'vitest'
import { modelPath } from '../../src/host/checkpoints/model-path.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

test('a misspelt model name gets a suggestion', () => {
  vi.stubEnv('XDG_CACHE_HOME', temporaryFolder())
  expect(() => modelPath('demoo')).toThrow('demoo: no such file or model; did you mean demo?')
  expect(() => modelPath('nosuchmodel')).toThrow('nosuchmodel: no such file or model; names are such as rwkv7-g1')
  expect(() => modelPath('rwkv7-g1-0.4')).toThrow(/not been pulled; did you mean rwkv7-g1-0\.4b\?/)
  // These names are correct.
  for (const name of ['rwkv7-g1a-0.4b', 'rwkv7-g1-13.3b', 'rwkv7-g1a-0.4b-20250905-ctx4096'])
    expect(() => modelPath(name)).toThrow(`"skein pull ${name}" fetches it`)
  expect(modelPath('models/other.pth')).toBe('models/other.pth')
  expect(modelPath('demo')).toBe(modelPath(undefined))
})
