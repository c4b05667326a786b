/**
 * The CUDA kernels as HIP, except those for matrix cores: they compile for AMD's chips. None of them has run on one.
 */
import { readdirSync } from 'node:fs'
import { expect, test } from 'vitest'
import { KERNEL_DIR, readKernelSource } from '../../../src/backend/cuda/kernel/source.ts'
import { findHipCompiler } from '../../helpers/hip.ts'
import { IS_SLOW } from '../../helpers/slow.ts'

/** CDNA 3 has waves of 64 lanes, RDNA 3 and 4 of 32. */
const CHIPS = ['gfx942', 'gfx1100', 'gfx1201']
const ROW = 'CHANNELS=768 THREADS=192'

const ON_MATRIX_CORES = [
  ...['eight-rows', 'few-rows', 'linear-few', 'linear-quant', 'linear-tiles', 'low-rank', 'wkv7-chunk'],
]

/** file → the macros it is compiled with. */
const KERNELS: Readonly<Record<string, readonly string[]>> = {
  'active-rows': ['QUANT=1', 'QUANT=6'],
  convert: ['SOURCE=1'],
  ddlerp: ['MIXES=5'],
  'deep-embed': ['SIDE=32 TABLE_TYPE=2'],
  embed: [`${ROW} TABLE_TYPE=2`, `${ROW} TABLE_TYPE=3 BLOCK=6`],
  'copy-slots': [''],
  fp8: ['SOURCE=1'],
  'gated-add': [''],
  'gather-norm': [ROW],
  'lay-out-blocks': ['QUANT=2 BLOCK=1', 'QUANT=7 BLOCK=8'],
  'linear-epilogue': [''],
  'linear-sparse': ['COLUMNS=16'],
  penalties: [''],
  quantise: ['QUANT=1 SOURCE=2', 'QUANT=3 SOURCE=2'],
  sample: ['CLUSTER=1 THREADS=1024 SCORES=0 BLOCKS=1'],
  'shift-mix': [`${ROW} TOKENS=1 MIXES=6`, `${ROW} TOKENS=2 MIXES=1`],
  'take-draws': [''],
  wkv6: ['STATE_F16=0', 'STATE_F16=1'],
  wkv7: ['STATE_F16=0', 'STATE_F16=1'],
  'wkv7-decode': ['STATE_F16=0 LOG_HEADS=1024 LOGGED=3', 'STATE_F16=1 LOG_HEADS=1024 LOGGED=0'],
  'wkv7-merge': ['STATE_F16=0 LOGGED=3'],
}

test('every kernel compiles as HIP, or is one for matrix cores', () => {
  const files = readdirSync(KERNEL_DIR).filter((name) => name.endsWith('.cu'))
  const known = [...ON_MATRIX_CORES, ...Object.keys(KERNELS)].map((name) => `${name}.cu`)
  expect(known.sort()).toEqual(files.sort())
})

test('no file but the portable header has PTX', () => {
  for (const file of Object.keys(KERNELS)) {
    const { text, headers } = readKernelSource(file)
    const used = new Map([[`${file}.cu`, text], ...headers])
    for (const name of ['language-cuda.cuh', ...GUARDED]) used.delete(name)
    for (const [name, code] of used) expect(code, name).not.toMatch(/\basm\b/)
  }
})

/** Defined for clusters and matrix cores, which no HIP kernel uses: CLUSTER is 1, and weight decoding is not called. */
const GUARDED = ['mbarrier.cuh', 'sample-cluster.cuh', 'quant.cuh']

const compiler = findHipCompiler()

const cases = Object.entries(KERNELS).flatMap(([file, variants]) =>
  (IS_SLOW ? variants : variants.slice(0, 1)).map((macros) => ({ file, macros })),
)

test.skipIf(compiler === null).each(cases)(
  `${compiler?.name ?? 'no compiler of HIP'}: $file ($macros)`,
  ({ file, macros }) => {
    const { path, text } = readKernelSource(file)
    const defines = macros.split(' ').flatMap((macro) => (macro === '' ? [] : [`-D${macro}`]))
    const flags = ['-std=c++17', `-I${KERNEL_DIR}`, ...defines]
    for (const chip of CHIPS) expect(compiler!.problem(path, text, chip, flags), chip).toBeNull()
  },
  120_000,
)
