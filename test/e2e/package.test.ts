/**
 * The packed file, installed in a fresh folder on a machine without a compiler: `SKEIN_SLOW=1`, since npm fetches what it
 * depends on. It carries the kernels that kernels/build has: after `npm pack` those of every system, here this machine's.
 */
import { execFile, execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const ROOT = join(import.meta.dirname, '../..')
/** What such a machine has: no compiler, and no way to fetch one. */
const PROGRAMS = ['node', 'npm', 'npx', 'sh', 'env', 'uname', 'ls', 'cat', 'nproc']
const COMPILERS = ['c++', 'g++', 'cc', 'gcc', 'clang', 'make', 'cmake', 'zig']

function bareMachine(): { readonly folder: string; readonly env: NodeJS.ProcessEnv } {
  const folder = temporaryFolder()
  const bin = join(folder, 'bin')
  mkdirSync(bin)
  for (const name of PROGRAMS) {
    const path = execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim()
    symlinkSync(path, join(bin, name))
  }
  const { CXX: _, NODE_OPTIONS: __, ...rest } = process.env
  const env = { ...rest, PATH: bin, SKEIN_NO_ZIG: '1', XDG_DATA_HOME: join(folder, 'data') }
  writeFileSync(join(folder, 'package.json'), '{"private": true}')
  return { folder, env }
}

describe.skipIf(process.env.SKEIN_SLOW !== '1')('the packed file', () => {
  test('works where nothing can be compiled, with its own kernels', async () => {
    const { folder, env } = bareMachine()
    const options = ['pack', '--ignore-scripts', '--pack-destination', folder]
    execFileSync('npm', options, { cwd: ROOT, stdio: 'ignore' })
    const packed = readdirSync(folder).find((name) => name.endsWith('.tgz'))!
    const run = async (command: string, ...args: string[]) =>
      (await promisify(execFile)(command, args, { cwd: folder, env })).stdout
    for (const name of COMPILERS) expect(existsSync(join(folder, 'bin', name))).toBe(false)
    await run('npm', 'install', `./${packed}`, '--prefer-offline', '--no-audit', '--no-fund')

    expect(await run('npx', 'skein', '--version')).toMatch(/^skein \d+\.\d+\.\d+\n$/)
    const doctor = JSON.parse(await run('npx', 'skein', 'doctor', '--json'))
    expect(doctor.cpu.problem).toBeNull()
    const { path } = doctor.cpu.levels.find(
      ({ level }: { level: string }) => level === doctor.cpu.chosen,
    )
    expect(path).toContain(join(folder, 'node_modules/skein/kernels/build'))
    const prompt = 'User: What is the capital of France?\n\nAssistant:'
    const flags = ['--device', 'cpu', '--temperature', '0', '--max-tokens', '12']
    expect(await run('npx', 'skein', 'generate', 'demo', ...flags, '--prompt', prompt)).toContain(
      'Paris',
    )
  }, 300_000)
})
