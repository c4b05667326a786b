import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { findVocabulary, WORLD_VOCABULARY } from '../../../src/tokenizer/find-vocabulary.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'skein-vocab-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

const WORLD = WORLD_VOCABULARY.fileName
const CACHED = `cache/skein/${WORLD}`

/** Creates the files and searches; the result is relative to the folder. */
function find(files: string[], options: { explicit?: string; named?: string; model?: string } = {}): string {
  for (const file of files) {
    mkdirSync(dirname(join(folder, file)), { recursive: true })
    writeFileSync(join(folder, file), '')
  }
  const { explicit, named, model = 'models/m-2.9b.pth' } = options
  const found = findVocabulary({
    model: join(folder, model),
    ...(explicit !== undefined && { explicit: join(folder, explicit) }),
    environment: { XDG_CACHE_HOME: join(folder, 'cache'), SKEIN_VOCAB: named && join(folder, named) },
  })
  return found.slice(folder.length + 1)
}

describe('search order', () => {
  const everywhere = ['a.txt', 'models/m-2.9b.vocab.txt', `models/${WORLD}`, 'models/vocab-x.txt', 'env.txt', CACHED]
  test.each<[string, string, string[], { explicit?: string; named?: string }]>([
    ['what the caller named', 'a.txt', everywhere, { explicit: 'a.txt', named: 'env.txt' }],
    ['the model’s own', 'models/m-2.9b.vocab.txt', everywhere, { named: 'env.txt' }],
    ['World beside it', `models/${WORLD}`, everywhere.filter((f) => !f.includes('m-2.9b')), { named: 'env.txt' }],
    ['the only one beside it', 'models/my_vocab.txt', ['models/my_vocab.txt', 'env.txt', CACHED], { named: 'env.txt' }],
    ['none of several', 'env.txt', ['models/vocab1.txt', 'models/vocab2.txt', 'env.txt', CACHED], { named: 'env.txt' }],
    ['the environment’s', 'env.txt', ['env.txt', CACHED], { named: 'env.txt' }],
    ['the cached', CACHED, [CACHED], {}],
  ])('%s', (_what, expected, files, options) => {
    expect(find(files, options)).toBe(expected)
  })
})

test('the model may be given without its suffix', () => {
  expect(find(['models/m-2.9b.vocab.txt'], { model: 'models/m-2.9b' })).toBe('models/m-2.9b.vocab.txt')
})

test('a model that is a directory has it inside', () => {
  const files = [`models/fla/${WORLD}`, 'models/fla/config.json', CACHED]
  expect(find(files, { model: 'models/fla' })).toBe(`models/fla/${WORLD}`)
})

test('the vocabulary of another model is not used', () => {
  expect(find(['models/demo.pth', 'models/demo.vocab.txt', CACHED])).toBe(CACHED)
})

describe('nothing found', () => {
  test('says which file to get and where to put it', () => {
    const error = expect.objectContaining({
      code: 'not_found',
      message: expect.stringMatching(
        new RegExp(
          `run .skein pull vocabulary., or put ${WORLD} beside the model or into .*; .* is m-2.9b.vocab.txt beside it, or named with --vocab`,
        ),
      ),
    })
    expect(() => find([])).toThrow(error)
    expect(() => find([], { model: 'no/such/folder/m-2.9b.pth' })).toThrow(error)
  })

  test('several vocabularies beside the model are listed', () => {
    expect(() => find(['models/vocab1.txt', 'models/vocab2.txt'])).toThrow('several: vocab1.txt, vocab2.txt')
  })

  test.each([{ explicit: 'absent.txt' }, { named: 'absent.txt' }])('%j is absent', (options) => {
    expect(() => find([CACHED], options)).toThrow(
      expect.objectContaining({
        code: 'not_found',
        message: expect.stringContaining('absent.txt: no such vocabulary file'),
      }),
    )
  })
})
