/** The table of docs/dev/adding.md: which files name a fact that is said once. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { allDialects } from '../../src/gateway/app.ts'
import { DEFAULT_LIMITS } from '../../src/gateway/http/limits.ts'
import { SETTINGS } from '../../src/settings/table.ts'

const ROOT = join(import.meta.dirname, '../..')

/** Files in the folders that match the pattern. */
function filesNaming(pattern: RegExp, ...folders: readonly string[]): string[] {
  return folders.flatMap((folder) =>
    (readdirSync(join(ROOT, folder), { recursive: true }) as string[])
      .filter((name) => /\.(ts|tsx|cpp|h|cu|cuh|wgsl)$/.test(name))
      .map((name) => `${folder}/${name}`)
      .filter((path) => pattern.test(readFileSync(join(ROOT, path), 'utf8')))
      .sort(),
  )
}

test('a sampling parameter is named only in its row, its definition, the kernels, their tests and its label', () => {
  const all = filesNaming(/\b(minP|min_p|kMinP|Min p)\b/, 'src', 'kernels', 'web/src', 'test')
  // Dialects with another default or name say so themselves; a slider is optional.
  const own = /openai\/parameters\.ts|^src\/api\/(fim|llama|ollama)\/|^test\/(api|unit)\/|settings-view\.tsx$/
  expect(all.filter((path) => !own.test(path))).toEqual([
    'src/backend/reference/sample.ts',
    'src/sampling.ts',
    'kernels/cpu/draw.h',
    'kernels/cuda/sample-draw.cuh',
    'kernels/cuda/sample-scores.cuh',
    'kernels/webgpu/draw.wgsl',
    'web/src/lib/chinese-chat.ts',
    'test/backend/draws.ts',
  ])
})

test('a backend is named only in its interface, in the choice of a device, and in the commands that measure and list devices', () => {
  const files = filesNaming(/'webgpu'|webgpu:|backend\/webgpu\//, 'src')
  expect(files.filter((path) => !/^src\/(backend\/webgpu|browser)\//.test(path))).toEqual([
    'src/backend/backend.ts',
    'src/cli/bench/bench.ts',
    'src/cli/doctor.ts',
    'src/host/device-choice.ts',
  ])
})

/** These are also words with another meaning, or exclude another setting. */
const SHARED = [
  ...['api-key', 'data-dir', 'memory-gb', 'metrics-port', 'model-name', 'no-store', 'pp-devices'],
  ...['step-tokens', 'trace-endpoint', 'without-model'],
]

test('a setting is named only in its row and where its value is read', () => {
  const flags = Object.keys(SETTINGS).filter((flag) => flag.includes('-') && !SHARED.includes(flag))
  expect(flags.length).toBeGreaterThan(15)
  for (const flag of flags) {
    const files = filesNaming(new RegExp(`'${flag}'`), 'src')
    expect(files, flag).toHaveLength(2)
    expect(files, flag).toContain('src/settings/table.ts')
  }
})

test('a metric of the engine is named only in its row, where it is counted, and where something is derived from it', () => {
  expect(filesNaming(/\bonDisk\b/, 'src')).toEqual(['src/engine/states.ts', 'src/engine/stats.ts'])
  expect(filesNaming(/\bprefixMisses\b/, 'src')).toEqual([
    'src/engine/states.ts',
    'src/engine/stats.ts',
    'src/gateway/management/sampler.ts',
  ])
})

/**
 * Several dialects have these, `/v1/batches` may call them, and a front gateway reads the session from the last one.
 */
const SHARED_PATHS = /^\/v1\/((chat\/)?completions|models|embeddings|responses|sessions\/:id)$/

test('a route is named only in its row, which gives the gateway its schema, role, tag and handler', () => {
  const rows = allDialects(DEFAULT_LIMITS).flatMap(({ routes }) => routes)
  const paths = new Set(rows.map(({ path }) => path))
  expect(paths.size).toBeGreaterThan(60)
  const quoted = new Map([...paths].map((path) => [path, 0]))
  for (const file of filesNaming(/./, 'src/api', 'src/gateway')) {
    const text = readFileSync(join(ROOT, file), 'utf8')
    const own = new Set(Array.from(text.matchAll(/'(\/[^'\n]*)'/g), ([, path]) => path!))
    for (const path of own) if (quoted.has(path)) quoted.set(path, quoted.get(path)! + 1)
  }
  const isTwice = ([path, count]: readonly [string, number]) => count > 1 && !SHARED_PATHS.test(path)
  expect([...quoted].filter(isTwice)).toEqual([])
})

test('three files lock a session, and one decides what a lock is', () => {
  expect(filesNaming(/\bsessions\.lock\(/, 'src')).toEqual([
    'src/engine/sessions/calls.ts',
    'src/engine/sessions/claims.ts',
    'src/engine/sessions/writers.ts',
  ])
  expect(filesNaming(/\.isBusy = /, 'src')).toEqual(['src/state/sessions.ts'])
})

test('tests that share a process mock no module', () => {
  const shared = ['api', 'cluster', 'cuda', 'engine', 'unit', 'web']
  expect(filesNaming(/\bvi\.(mock|doMock)\(/, ...shared.map((name) => `test/${name}`))).toEqual([])
  expect(filesNaming(/\bvi\.mock\(/, 'test/model')).toEqual([
    'test/model/best-device.test.ts',
    'test/model/load.test.ts',
  ])
})
