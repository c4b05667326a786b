/**
 * The compiled kernels in kernels/build, for this system and others: each is for the system in its folder's name,
 * exports all of skein.h, and needs only the system's libraries. test/e2e/package.test.ts checks that a package has all
 * of them.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { readSharedLibrary } from '../helpers/shared-library.ts'

const ROOT = join(import.meta.dirname, '../..')
const BUILD = join(ROOT, 'kernels/build')
const EXTENSIONS = /\.(so|dylib|dll)$/
const header = readFileSync(join(ROOT, 'kernels/cpu/skein.h'), 'utf8')
const FUNCTIONS = [...header.matchAll(/^SK_API [\w *]*?(sk_\w+)\(/gm)].map(([, name]) => name!).sort()

/** Also there: the results that check:cuda remembers. */
const platforms = readdirSync(BUILD, { withFileTypes: true }).filter((one) => one.isDirectory())
const libraries = platforms.flatMap(({ name: platform }) =>
  readdirSync(join(BUILD, platform))
    .filter((name) => EXTENSIONS.test(name))
    .map((name) => [platform, name] as const),
)

/**
 * Libraries that every such system has. Zig's are for glibc 2.28 and later; those of the local compiler are for this
 * machine.
 */
const SYSTEM: Readonly<Record<string, RegExp>> = {
  linux: /^(GLIBC\w*_[\d.]+|(libc|libm|libpthread|libdl|librt|ld-linux[\w-]*|libstdc\+\+|libgcc_s)\.so\.\d)$/,
  darwin: /^(signature|\/usr\/lib\/libSystem\.B\.dylib)$/,
  win32: /^(KERNEL32|ntdll|USER32|ADVAPI32|api-ms-win-crt-[\w-]+-l1-1-0)\.dll$/i,
}

test('skein.h is parsed completely', () => {
  expect(FUNCTIONS.length).toBe([...header.matchAll(/^SK_API /gm)].length)
})

test.each(libraries)('%s/%s is a complete library', (platform, name) => {
  const library = readSharedLibrary(readFileSync(join(BUILD, platform, name)))
  expect(library.platform).toBe(platform)
  const wanted = name.includes('-machine.') ? ['sk_machine_level'] : FUNCTIONS
  expect(library.exports.filter((symbol) => symbol.startsWith('sk_')).sort()).toEqual(wanted)
  const system = SYSTEM[platform.split('-')[0]!]!
  expect(library.needs.filter((need) => !system.test(need))).toEqual([])
  if (platform === 'darwin-arm64') expect(library.needs).toContain('signature')
})
