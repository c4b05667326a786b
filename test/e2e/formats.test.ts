/** The commands about models, as processes: a GGUF with its own vocabulary, convert, pull, ls, rm, and names. */
// @module-tag night
import { spawn } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { MAIN, skein } from '../helpers/cli.ts'
import { type FakeHub, startFakeHub } from '../helpers/fake-hub.ts'
import { readTensors, writeAsGguf } from '../helpers/formats.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const folder = temporaryFolder()
const GGUF = join(folder, 'tiny.gguf')
let hub: FakeHub

beforeAll(async () => {
  const escapes = Array.from({ length: 256 }, (_, i) => `\\x${i.toString(16).padStart(2, '0')}`)
  const tokens = ['<s>', ...escapes, 'hello', ...Array.from({ length: 2 }, (_, i) => `[PAD${258 + i}]`)]
  const model = writeRandomRwkv7(join(folder, 'source.pth'), { vocab: 260 })
  writeAsGguf(GGUF, readTensors(model), {
    architecture: 'rwkv7',
    type: 'Q8_0',
    metadata: { 'tokenizer.ggml.model': 'rwkv', 'tokenizer.ggml.tokens': tokens },
  })
  hub = await startFakeHub({ 'tests/tiny': { 'tiny.Q8_0.gguf': { content: readFileSync(GGUF) } } })
  process.env.HF_ENDPOINT = hub.url
  process.env.XDG_CACHE_HOME = join(folder, 'cache')
})
afterAll(async () => {
  delete process.env.HF_ENDPOINT
  delete process.env.XDG_CACHE_HOME
  await hub.close()
})

const ok = async (...args: string[]) => {
  const { code, stdout, stderr } = await skein(args)
  expect(stderr).not.toMatch(/^skein: /m)
  expect(code).toBe(0)
  return stdout
}

test('a GGUF works without any other file', async () => {
  const text = await ok('generate', GGUF, '--prompt', 'hello', '--seed', '1', '--max-tokens', '4', '--json')
  expect(JSON.parse(text)).toMatchObject({ prompt: 'hello', tokens: 4 })
  const about: unknown = JSON.parse(await ok('inspect', GGUF, '--json'))
  expect(about).toMatchObject({ format: 'gguf', hasVocabulary: true, architecture: 'rwkv7' })
})

test('converted, it keeps its vocabulary and gives the same answers', async () => {
  const out = join(folder, 'tiny.safetensors')
  expect(await ok('convert', GGUF, out)).toBe(`${out}\n${join(folder, 'tiny.vocab.txt')}\n`)
  const say = (model: string) => ok('generate', model, '--prompt', 'hello', '--temperature', '0', '--max-tokens', '8')
  expect(await say(out)).toBe(await say(GGUF))
  const again = await skein(['convert', GGUF, out])
  expect(again).toMatchObject({ code: 1, stderr: expect.stringContaining('--force replaces it') })
})

test('pulled, listed, used by name, removed', async () => {
  const missing = await skein(['inspect', 'tests/tiny'])
  expect(missing.stderr).toContain('"skein pull tests/tiny" fetches it')
  const path = (await ok('pull', 'tests/tiny')).trim()
  expect(readFileSync(path)).toEqual(readFileSync(GGUF))
  expect(await ok('ls')).toMatch(/tiny\.Q8_0 +\S+ \S+ +tests\/tiny/)
  expect(JSON.parse(await ok('inspect', 'tests/tiny', '--json'))).toMatchObject({ path })
  expect(await ok('pull', 'tests/tiny', '--offline')).toBe(`${path}\n`)
  await ok('generate', 'tiny.Q8_0', '--prompt', 'a', '--max-tokens', '1')
  expect(await ok('rm', 'tiny.Q8_0')).toContain(`removed ${path}`)
  expect(existsSync(path)).toBe(false)
  expect((await skein(['rm', 'tiny.Q8_0'])).stderr).toContain('no pulled model "tiny.Q8_0"')
})

test('a download interrupted by Ctrl-C says so, and the next one continues there', async () => {
  const cdn = '/cdn/tests/tiny/tiny.Q8_0.gguf'
  hub.faults.set(cdn, [{ kind: 'stall', bytes: 1000 }])
  const child = spawn(process.execPath, [MAIN, 'pull', 'tests/tiny'])
  const ended = new Promise((resolve) => child.on('close', resolve))
  const said = text(child.stderr)
  await expect.poll(async () => (await skein(['ls'])).stdout).toMatch(/1\.00 KB .*incomplete/)
  child.kill('SIGINT')
  expect([await ended, await said]).toEqual([130, 'skein: stopped; the same command goes on with what has come\n'])
  await ok('pull', 'tests/tiny')
  expect(hub.requests.at(-1)).toBe(`GET ${cdn} bytes=1000-`)
  await ok('rm', 'tiny.Q8_0')
})

test('doctor calls a machine usable if only the World vocabulary is missing', async () => {
  const { findings, isUsable } = JSON.parse(await ok('doctor', '--json'))
  type Found = { what: string; fix: string | null; isOptional?: true }
  const { fix, isOptional } = findings.find(({ what }: Found) => what === 'vocabulary')
  expect([fix, isOptional]).toEqual([expect.any(String), true])
  const others = findings.filter(({ what }: Found) => what !== 'vocabulary')
  expect(isUsable).toBe(others.every((one: Found) => one.fix === null))
})
