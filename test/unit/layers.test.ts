import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { expect, test } from 'vitest'

/** The interface of a backend, without any implementation. */
const SEAM = ['backend', 'batch', 'flight', 'state-shape', 'weight-types'].map((name) => `backend/${name}.ts`)
/** wing → the other wings, or their files, that it may import. All may import the leaves. */
const ALLOWED: Record<string, readonly string[]> = {
  cli: [
    'settings',
    'host',
    'gateway',
    'bench',
    'hub',
    'engine/client.ts',
    'model',
    'tokenizer',
    'backend/cpu',
    'backend/cuda',
    'backend/webgpu',
    'index.ts',
    'cluster',
    'state/shared/open-blobs.ts',
  ],
  settings: ['host', 'gateway', 'hub', 'model', 'cluster'],
  host: ['batches', 'gateway', 'cluster', 'engine', 'hub', 'model', 'state', 'tokenizer', 'backend'],
  // Code that a page can run; browser-bundle.test.ts checks its bundle.
  browser: [
    'api/template.ts',
    'engine/answer',
    'engine/kept/identity.ts',
    'model',
    'state/snapshot.ts',
    'state/snapshot-file.ts',
    'tokenizer',
    'backend',
  ],
  bench: [
    ...SEAM,
    'backend/half.ts',
    'engine/client.ts',
    'engine/messages.ts',
    'engine/prefill-budget.ts',
    'model',
    'tokenizer',
  ],
  gateway: [
    'api',
    'batches',
    'engine/client.ts',
    'engine/messages.ts',
    'engine/stats.ts',
    'engine/client',
    'backend/ffi.ts',
    'cluster',
    'state/namespace.ts',
  ],
  api: [
    'engine/client.ts',
    'engine/client/token-bytes.ts',
    'engine/messages.ts',
    'engine/stats.ts',
    'grammar',
    'batches',
  ],
  batches: ['state/store/sqlite.ts', 'state/shared/blobs.ts', 'cluster/database.ts'],
  engine: ['state', 'model/runner.ts', 'tokenizer', 'grammar'],
  model: [...SEAM, 'backend/half.ts', 'backend/quantised.ts'],
  hub: ['tokenizer'],
  state: ['backend/state-shape.ts', 'cluster'],
  cluster: [],
  grammar: ['tokenizer/trie.ts'],
  backend: [],
  tokenizer: [],
  files: [],
  threads: [],
}
/** These know nothing of the rest, and all may use them. */
const LEAVES = ['errors.ts', 'sampling.ts', 'files', 'threads']
/** Inside a wing: its folders from bottom to top. A folder may import those before it, and the wing's own files. */
const FLOORS: Record<string, readonly string[]> = {
  gateway: ['routing', 'access', 'body', 'http', 'figures', 'fleet', 'models', 'management', 'cluster', 'pages'],
  'backend/cuda': ['driver', 'kernel', 'kinds', 'device', 'gemm', 'step', 'linear', 'ops'],
  backend: ['reference', 'cpu', 'cuda', 'webgpu'],
  engine: ['fairness', 'answer', 'kept', 'sessions', 'speculation', 'client'],
  'model/formats': ['torch', 'safetensors', 'gguf'],
  cli: ['terminal', 'models', 'chat', 'launch', 'bench'],
}
/** The files of src/ itself. */
const ROOT = ['errors.ts', 'index.ts', 'sampling.ts']
/** A folder with more files has two topics. */
const MOST_FILES = 15
const SRC = join(import.meta.dirname, '../../src')

const files = (readdirSync(SRC, { recursive: true }) as string[]).filter((file) => file.endsWith('.ts'))
const imports = new Map(files.map((file) => [file, importsOf(file)]))

function importsOf(file: string): string[] {
  const text = readFileSync(join(SRC, file), 'utf8')
  return [...text.matchAll(/(?:from|import\() ?'([^']+)'/g)].map((match) => match[1]!)
}

/** Files of src/ that a file imports, types included. */
function targetsOf(file: string): string[] {
  const own = imports.get(file)!.filter((spec) => spec.startsWith('.'))
  return own.map((spec) => normalize(join(dirname(file), spec)))
}

function isWithin(file: string, place: string): boolean {
  return file === place || file.startsWith(`${place}/`)
}

function followsTable(file: string, target: string): boolean {
  const wing = file.split('/')[0]!
  return [wing, ...LEAVES, ...ALLOWED[wing]!].some((place) => isWithin(target, place))
}

function followsFloors(file: string, target: string): boolean {
  return Object.entries(FLOORS).every(([wing, floors]) => {
    const [from, to] = [file, target].map((path) =>
      floors.findIndex((floor) => isWithin(path, `${wing}/${floor}`)),
    ) as [number, number]
    return from === -1 || to <= from
  })
}

function brokenBy(rule: (file: string, target: string) => boolean): string[] {
  return files
    .filter((file) => file.includes('/'))
    .flatMap((file) =>
      targetsOf(file)
        .filter((target) => !rule(file, target))
        .map((target) => `${file} → ${target}`),
    )
}

test('no file is longer than 400 lines', () => {
  const lines = (file: string) => readFileSync(join(SRC, file), 'utf8').split('\n').length - 1
  expect(files.filter((file) => lines(file) > 400)).toEqual([])
})

test('imports follow the layer table', () => {
  expect(brokenBy(followsTable)).toEqual([])
})

test('within a wing, imports go down', () => {
  expect(brokenBy(followsFloors)).toEqual([])
})

test('no file imports itself through others, types included', () => {
  const done = new Set<string>()
  const circles: string[] = []
  const visit = (file: string, path: readonly string[]): void => {
    if (path.includes(file)) circles.push([...path.slice(path.indexOf(file)), file].join(' → '))
    if (done.has(file) || path.includes(file)) return
    for (const target of targetsOf(file)) if (imports.has(target)) visit(target, [...path, file])
    done.add(file)
  }
  for (const file of files) visit(file, [])
  expect(circles).toEqual([])
})

test(`a folder holds at most ${MOST_FILES} files, and src/ itself three`, () => {
  const counts = new Map<string, number>()
  for (const file of files) counts.set(dirname(file), (counts.get(dirname(file)) ?? 0) + 1)
  expect(files.filter((file) => !file.includes('/')).sort()).toEqual(ROOT)
  expect([...counts].filter(([, count]) => count > MOST_FILES)).toEqual([])
})

test('only backend/ffi.ts loads native libraries', () => {
  expect(files.filter((file) => imports.get(file)!.includes('koffi'))).toEqual(['backend/ffi.ts'])
})

test('only the cluster database imports its driver', () => {
  const users = files.filter((file) => imports.get(file)!.includes('pg'))
  expect(users).toEqual(['cluster/database.ts'])
})

test('only the state store imports SQLite', () => {
  const users = files.filter((file) => imports.get(file)!.includes('@photostructure/sqlite'))
  const folders = new Set(users.map((file) => dirname(file)))
  expect([...folders]).toEqual(['state/store'])
})
