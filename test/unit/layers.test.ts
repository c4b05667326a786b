import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { expect, test } from 'vitest'

/** folder → what it may import besides itself and the leaves. Root files put the parts together and may import all. */
const ALLOWED: Record<string, readonly string[]> = {
  cli: [
    'bench',
    'config',
    'gateway',
    'hub',
    'engine/client.ts',
    'engine/messages.ts',
    'model',
    'tokenizer',
    'backend/cpu',
    'backend/cuda',
    'device-choice.ts',
    'load.ts',
    'index.ts',
    'unsent-bytes.ts',
  ],
  bench: ['engine/client.ts', 'engine/messages.ts', 'model', 'tokenizer', 'backend/backend.ts'],
  gateway: ['api', 'engine', 'tokenizer'],
  api: ['engine/client.ts', 'engine/messages.ts', 'tokenizer'],
  engine: ['state', 'model/runner.ts', 'tokenizer'],
  model: ['backend/backend.ts', 'backend/quantised.ts'],
  config: [],
  hub: ['tokenizer'],
  state: [],
  backend: [],
  tokenizer: [],
}
/** They know nothing of the rest, and all may use them. */
const LEAVES = ['checkpoint-suffix.ts', 'errors.ts', 'make-folder.ts']
const SRC = join(import.meta.dirname, '../../src')

function importsOf(file: string): string[] {
  const text = readFileSync(join(SRC, file), 'utf8')
  return [...text.matchAll(/(?:from|import\() ?'([^']+)'/g)].map((match) => match[1]!)
}

function isAllowed(file: string, target: string): boolean {
  const folder = file.split('/')[0]!
  return (
    LEAVES.includes(target) ||
    target.startsWith(`${folder}/`) ||
    ALLOWED[folder]!.some((allowed) => target === allowed || target.startsWith(`${allowed}/`))
  )
}

const files = (readdirSync(SRC, { recursive: true }) as string[]).filter((file) =>
  file.endsWith('.ts'),
)

test('imports follow the layer table', () => {
  const broken = files
    .filter((file) => file.includes('/'))
    .flatMap((file) =>
      importsOf(file)
        .filter((spec) => spec.startsWith('.'))
        .map((spec) => normalize(join(dirname(file), spec)))
        .filter((target) => !isAllowed(file, target))
        .map((target) => `${file} → ${target}`),
    )
  expect(broken).toEqual([])
})

test('only backend/ffi.ts loads native libraries', () => {
  expect(files.filter((file) => importsOf(file).includes('koffi'))).toEqual(['backend/ffi.ts'])
})

test('only the store of states knows of SQL', () => {
  const users = files.filter((file) => importsOf(file).includes('better-sqlite3'))
  const folders = new Set(users.map((file) => dirname(file)))
  expect([...folders]).toEqual(['state/store'])
})
