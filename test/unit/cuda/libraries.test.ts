import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import {
  describeMissing,
  findHeaders,
  findLibrary,
  findNvcc,
  installAdvice,
  type SearchRoots,
} from '../../../src/backend/cuda/driver/libraries.ts'
import { openCompiler } from '../../../src/backend/cuda/kernel/compiler.ts'
import { KERNEL_DIR } from '../../../src/backend/cuda/kernel/source.ts'
import { lookForLibraries } from '../../../src/backend/cuda/report.ts'

const root = mkdtempSync(join(tmpdir(), 'skein-libraries-'))
afterAll(() => rmSync(root, { recursive: true }))

/** A machine with the given files; one folder for each call. */
function machine(files: readonly string[], more: Partial<SearchRoots> = {}): SearchRoots & { at: string } {
  const at = mkdtempSync(join(root, 'm-'))
  for (const file of files) {
    mkdirSync(dirname(join(at, file)), { recursive: true })
    writeFileSync(join(at, file), '')
  }
  return { at, environment: {}, toolkits: join(at, 'usr/local'), ldconfig: () => '', pythonPaths: () => [], ...more }
}

test('a toolkit folder: the newest that the driver supports', () => {
  const roots = machine([
    'usr/local/cuda-12.4/lib64/libnvrtc.so.12',
    'usr/local/cuda-12.4/lib64/libnvrtc.so.12.4.127',
    'usr/local/cuda-12.4/lib64/libnvrtc-builtins.so.12.4',
    'usr/local/cuda-13.0/lib64/libnvrtc.so.13',
    'usr/local/cuda-13.0/lib64/libnvrtc.alt.so.13',
  ])
  const found = (driver: number) => findLibrary('nvrtc', driver, roots).found?.path
  expect(found(13)).toBe(join(roots.at, 'usr/local/cuda-13.0/lib64/libnvrtc.so.13'))
  expect(found(12)).toContain('usr/local/cuda-12.4/lib64/libnvrtc.so.12')
  const none = findLibrary('nvrtc', 11, roots)
  expect(none.found).toBeNull()
  expect(none.tooNew.map(({ major }) => major)).toEqual([13, 12, 12])
  expect(describeMissing('nvrtc', 11, none)).toMatch(
    /libnvrtc\.so was not found \(.*libnvrtc\.so\.13.* needs a newer driver: this one serves CUDA 11\); searched .*cuda-13\.0\/lib64.*pip install nvidia-cuda-nvrtc-cu11/,
  )
})

test('CUDA_HOME takes precedence over /usr/local', () => {
  const files = ['opt/mine/lib64/libcublasLt.so.13', 'usr/local/cuda/lib64/libcublasLt.so.13']
  const roots = machine(files)
  const mine = { ...roots, environment: { CUDA_HOME: join(roots.at, 'opt/mine') } }
  expect(findLibrary('cublasLt', 13, mine).found?.path).toContain('opt/mine')
  expect(findLibrary('cublasLt', 13, roots).found?.path).toContain('usr/local/cuda/')
})

test("the loader's cache", () => {
  const roots = machine([], {
    ldconfig: () =>
      '\tlibnvrtc-builtins.so.12.6 (libc6,x86-64) => /lib/libnvrtc-builtins.so.12.6\n' +
      '\tlibnvrtc.so.12 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvrtc.so.12\n' +
      '\tlibnvrtc.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvrtc.so\n',
  })
  expect(findLibrary('nvrtc', 13, roots).found).toEqual({ path: '/lib/x86_64-linux-gnu/libnvrtc.so.12', major: 12 })
})

test('Python wheels, with the headers beside them', () => {
  const roots = machine([
    'site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12',
    'site/nvidia/cuda_runtime/include/cuda_fp16.h',
    'site/nvidia/cublas/lib/libcublasLt.so.12',
    'new/nvidia/cu13/lib/libnvrtc.so.13',
    'new/nvidia/cu13/include/cuda_fp16.h',
  ])
  const paths = { ...roots, pythonPaths: () => ['', join(roots.at, 'site'), join(roots.at, 'new')] }
  const old = findLibrary('nvrtc', 12, paths).found!.path
  expect(old).toBe(join(roots.at, 'site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12'))
  expect(findHeaders(old, paths)).toBe(join(roots.at, 'site/nvidia/cuda_runtime/include'))
  expect(findLibrary('cublasLt', 13, paths).found?.major).toBe(12)
  const only = { ...roots, pythonPaths: () => [join(roots.at, 'new')] }
  const young = findLibrary('nvrtc', 13, only).found!.path
  expect(findHeaders(young, only)).toBe(join(roots.at, 'new/nvidia/cu13/include'))
})

test('nothing found: what was searched, and what to install', () => {
  const search = findLibrary('cublasLt', 13, machine([]))
  expect(describeMissing('cublasLt', 13, search)).toBe(
    "libcublasLt.so was not found; searched the loader's cache (ldconfig -p), python3's packages (nvidia/*/lib); " +
      "install the CUDA 13 toolkit (apt-get install cuda-toolkit-13, from NVIDIA's repository), or: pip install nvidia-cublas; " +
      'or point CUDA_HOME at one',
  )
  expect(installAdvice('nvrtc', 12)).toContain('pip install nvidia-cuda-nvrtc-cu12;')
})

test('NVRTC and cuBLASLt are sufficient: kernels need no CUDA headers', () => {
  const roots = machine(['site/nvidia/cu13/lib/libnvrtc.so.13', 'site/nvidia/cu13/lib/libcublasLt.so.13'])
  const wheels = { ...roots, pythonPaths: () => [join(roots.at, 'site')] }
  const lib = join(roots.at, 'site/nvidia/cu13/lib')
  expect(lookForLibraries(13, wheels)).toEqual({
    nvrtc: join(lib, 'libnvrtc.so.13'),
    nvcc: null,
    cublasLt: join(lib, 'libcublasLt.so.13'),
    problems: [],
  })
  // An empty file is no library, but it is the one that gets opened.
  expect(() => openCompiler(13, wheels)).toThrow(/libnvrtc\.so\.13.*(too short|invalid ELF)/)
  const parts = lookForLibraries(13, machine([])).problems.map(({ part }) => part)
  expect(parts).toEqual(['compiler', 'cublasLt'])
})

test('no kernel includes a header of CUDA', () => {
  const files = readdirSync(KERNEL_DIR).filter((name) => /\.cuh?$/.test(name))
  expect(files.length).toBeGreaterThan(40)
  const including = files.filter((name) => /^\s*#\s*include\s*</m.test(readFileSync(join(KERNEL_DIR, name), 'utf8')))
  expect(including).toEqual([])
})

test('nvcc in a toolkit or on the path', () => {
  const roots = machine(['usr/local/cuda/bin/nvcc', 'bin/nvcc'])
  expect(findNvcc(roots)).toBe(join(roots.at, 'usr/local/cuda/bin/nvcc'))
  const bare = { ...machine([]), environment: { PATH: `/nowhere:${join(roots.at, 'bin')}` } }
  expect(findNvcc(bare)).toBe(join(roots.at, 'bin/nvcc'))
  expect(findNvcc(machine([]))).toBeNull()
})
