/**
 * The CPU's kernels for arm64, compiled by a cross compiler and run in an emulator (Debian: apt-get install
 * g++-aarch64-linux-gnu qemu-user). Products have the bits of the library for AVX2: both sum in the order of K, and fuse.
 */
import { execFile, execFileSync, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { beforeAll, describe, expect, test } from 'vitest'
import { availableLevels, cpuReport, libraryPath } from '../../src/backend/cpu/isa.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const KERNELS = join(import.meta.dirname, '../../kernels')
const PROGRAM = join(import.meta.dirname, 'arm64/products.cpp')
const CROSS = 'aarch64-linux-gnu-g++'
const EMULATOR = ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu'] as const
/** What products need. -O0: to compile them takes longer than to run them. */
const SOURCES = 'linear pack packed packed-tile activations split memory pool program tile-products quantise'.split(' ')
const FLAGS = '-std=c++20 -O0 -fPIC -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread -Wno-psabi'.split(' ')
/** Processors that have no more than a level needs, and the flags of build-native.js for it. */
const LEVELS = [
  { level: 'baseline', cpu: 'cortex-a72', flags: [], instructions: /\bfmla\b/ },
  { level: 'dotprod', cpu: 'neoverse-n1', flags: ['-march=armv8.2-a+dotprod'], instructions: /\bsdot\b/ },
  { level: 'i8mm', cpu: 'max', flags: ['-march=armv8.2-a+dotprod+i8mm'], instructions: /\bsmmla\b/ },
]

const isThere = (command: string) => spawnSync(command, ['--version']).status === 0
const hasTools = isThere('g++') && isThere(CROSS) && isThere(EMULATOR[0])
const hasAvx2 = cpuReport().problem === null && availableLevels().includes('avx2')
const why = hasTools ? (hasAvx2 ? null : 'no AVX2 to compare with') : `no ${CROSS} or ${EMULATOR[0]}`

describe.skipIf(why !== null)(`kernels for arm64${why === null ? '' : ` (${why})`}`, () => {
  const folder = temporaryFolder()
  const run = promisify(execFile)
  const emulated = (cpu: string, ...command: string[]) =>
    execFileSync(EMULATOR[0], ['-cpu', cpu, ...EMULATOR.slice(1), ...command], { encoding: 'utf8' })
  const program = join(folder, 'products')
  let expected: string

  beforeAll(async () => {
    const build = (compiler: string, to: string) =>
      run(compiler, [...FLAGS, `-I${KERNELS}/cpu`, PROGRAM, '-o', to, '-ldl'])
    await Promise.all([build(CROSS, program), build('g++', `${program}-here`)])
    expected = execFileSync(`${program}-here`, [libraryPath('avx2')], { encoding: 'utf8' })
  })

  test('a machine runs the level of its instructions', async () => {
    const library = join(folder, 'machine.so')
    await run(CROSS, [...FLAGS, '-shared', join(KERNELS, 'machine/level.cpp'), '-o', library])
    const level = (cpu: string) => Number(emulated(cpu, program, library, 'level'))
    expect(LEVELS.map(({ cpu }) => level(cpu))).toEqual([0, 1, 2])
  })

  for (const { level, cpu, flags, instructions } of LEVELS)
    test(`products of ${level} on a ${cpu}`, level === 'i8mm' ? {} : { tags: 'night' }, async () => {
      const objects = SOURCES.map((name) => join(folder, `${level}-${name}.o`))
      const compile = (name: string, i: number) =>
        run(CROSS, [...FLAGS, ...flags, '-c', join(KERNELS, 'cpu', `${name}.cpp`), '-o', objects[i]!])
      await Promise.all(SOURCES.map(compile))
      const library = join(folder, `${level}.so`)
      await run(CROSS, ['-shared', '-Wl,--no-undefined', '-pthread', ...objects, '-o', library])
      expect(existsSync(library)).toBe(true)
      const options = { maxBuffer: 2 ** 30 }
      const { stdout } = await run('aarch64-linux-gnu-objdump', ['-d', '--no-show-raw-insn', objects[0]!], options)
      expect(stdout).toMatch(instructions)
      const found = emulated(cpu, program, library)
      expect(found.split('\n')).toEqual(expected.split('\n'))
      expect(found.split('\n').length).toBeGreaterThan(100)
    })
})
