/**
 * Compiles kernels/cuda with nvcc for cards that this machine lacks, into kernels/build/cuda-<version>/. A package
 * carries these, so the first start of a released model on such a card compiles nothing. Recording the model for a card
 * tells which kernels are needed. Existing files stay; files that no model needs any more are removed. Without nvcc it
 * prints a message and succeeds: kernels are then compiled at the first start.
 *
 *   node scripts/build-cubins.js                              all of CARDS and SIZES below
 *   node scripts/build-cubins.js --cards h200 --sizes 7.2b    only those; files of others stay
 */
import { spawn, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { brotliCompressSync, constants } from 'node:zlib'
import { kernelsOf } from '../dist/backend/cuda/cuda.js'
import { CARDS, infoOf } from '../dist/backend/cuda/driver/cards.js'
import { findNvcc } from '../dist/backend/cuda/driver/libraries.js'
import { compileOptions, nvccFlags } from '../dist/backend/cuda/kernel/compiler.js'
import { SHIPPED_DIR, shippedName } from '../dist/backend/cuda/kernel/image.js'
import { seal } from '../dist/backend/cuda/kernel/seal.js'
import { KERNEL_DIR, readKernelSource } from '../dist/backend/cuda/kernel/source.js'
import { nativeTarget } from '../dist/backend/cuda/kernel/target.js'
import { shapesOnly } from '../dist/bench/random-model.js'
import { ModelRunner } from '../dist/model/run/model-runner.js'
import { loadRwkv7 } from '../dist/model/rwkv7.js'

const { values: asked } = parseArgs({
  options: {
    cards: { type: 'string', default: 'a100,3090,4090,h200,5090' },
    sizes: { type: 'string', default: '0.1b,0.4b,1.5b,2.9b,7.2b' },
  },
})
const isAll = !process.argv.slice(2).some((word) => /^--(cards|sizes)/.test(word))
/** Types of weights; undefined is the file's own, f16 on the device. @type {(undefined | 'i8' | 'q4')[]} */
const TYPES = [undefined, 'i8', 'q4']
const SIZE = { maxTokens: 2048, fingerprint: '' }
/** As `serve` chooses when there is room, and so few that states have no log. */
const SLOTS = [256, 1]

/** file name → how it is made. */
function listImages() {
  /** @type {Map<string, { file: string, defines: Record<string, string | number>, target: { name: string, kind: 'cubin' | 'ptx' } }>} */
  const images = new Map()
  for (const name of asked.cards.split(',')) {
    const info = infoOf(CARDS[name])
    const target = nativeTarget(info.chip)
    for (const size of asked.sizes.split(','))
      for (const weightType of TYPES)
        for (const wkv of ['f32', 'f16'])
          for (const [file, defines] of kernelsFor(info, size, weightType, wkv)) {
            const key = shippedName(readKernelSource(file), info.chip, defines)
            images.set(key, { file, defines, target })
          }
  }
  return images
}

function kernelsFor(info, size, weightType, wkv) {
  return SLOTS.flatMap((numSlots) =>
    kernelsOf(info, wkv, (backend) => {
      const model = loadRwkv7(shapesOnly(size), backend, { weightType })
      new ModelRunner(model, backend, { ...SIZE, numSlots })
    }),
  )
}

/** @param {string} nvcc @param {string} path */
function compile(nvcc, { file, defines, target }, path) {
  const words = [...nvccFlags(target), ...compileOptions(KERNEL_DIR, defines)]
  const child = spawn(nvcc, [...words, '-o', path, join(KERNEL_DIR, `${file}.cu`)])
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (output += text))
  return new Promise((resolve, reject) => {
    child.on('error', reject)
    child.on('close', (code) =>
      code === 0 ? resolve(undefined) : reject(new Error(`${file}.cu for ${target.name}:\n${output}`)),
    )
  })
}

const nvcc = findNvcc()
if (nvcc === null) {
  console.log('cubins: not built, nvcc is not installed')
  process.exit(0)
}
const version = /release (\d+)\./.exec(spawnSync(nvcc, ['--version'], { encoding: 'utf8' }).stdout)
const folder = join(SHIPPED_DIR, `cuda-${version[1]}`)
mkdirSync(folder, { recursive: true })
const images = listImages()
const there = new Set(readdirSync(folder))
const waiting = [...images].filter(([name]) => !there.has(name))
const scratch = mkdtempSync(join(tmpdir(), 'skein-cubins-'))
const started = performance.now()
async function work() {
  for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
    const [name, image] = next
    const path = join(scratch, name)
    await compile(nvcc, image, path)
    const params = { [constants.BROTLI_PARAM_QUALITY]: 9 }
    writeFileSync(join(folder, name), brotliCompressSync(seal(readFileSync(path)), { params }))
  }
}
const numNew = waiting.length
try {
  await Promise.all(Array.from({ length: availableParallelism() }, work))
} finally {
  rmSync(scratch, { recursive: true })
}
if (isAll) for (const name of there) if (!images.has(name)) rmSync(join(folder, name))
const bytes = [...images.keys()].reduce((sum, name) => sum + readFileSync(join(folder, name)).length, 0)
const seconds = ((performance.now() - started) / 1000).toFixed(0)
console.log(`cubins: ${images.size} for ${asked.cards}, ${(bytes / 1e6).toFixed(1)} MB, ${numNew} new (${seconds} s)`)
