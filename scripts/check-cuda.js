/**
 * Compiles the kernels of kernels/cuda with nvcc, to find errors on machines without a GPU: one variant of each for
 * Hopper and one for the oldest supported chip generation. --all compiles every variant for Hopper, the first for every
 * generation, and what models need on every card of backend/cuda/driver/cards.ts (needs dist), where ptxas counts
 * spilled registers. A text that passed before is not compiled again. Without nvcc it prints a message and succeeds. It
 * does not check results.
 */
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const sourceDir = join(root, 'kernels/cuda')
const buildDir = join(root, 'kernels/build')
const passedFile = join(buildDir, 'cuda-passed.json')

/** Hopper, which gets every variant; Turing, Ampere, Ada, Blackwell of data centres and of desktops get the first. */
const ALL_TARGETS = ['90a', '75', '80', '86', '89', '100', '120']

/**
 * Bytes of registers that a kernel may spill; ptxas itself refuses too much shared memory. Eight blocks of
 * `sample` hold a row's scores in registers, and some of the rest is stored. Two tokens of wide models spill 476 on a
 * B200, where one launch for them is not measured (docs/dev/cards.md).
 * @param {string} job
 */
function mostSpilledBytes(job) {
  if (/^few-rows\.cu \(TOKENS=2 .* for b200/.test(job)) return 480
  return job.startsWith('sample.cu') ? 256 : 128
}

const isAll = process.argv.includes('--all')
/** An error in the source shows on any chip; the oldest misses code for newer ones. */
const TARGETS = isAll ? ALL_TARGETS : ALL_TARGETS.slice(0, 2)

/** The narrowest and widest rows of a model; THREADS as backend/cuda/ops/norm.ts chooses it. */
const ROWS = ['CHANNELS=768 THREADS=192', 'CHANNELS=4096 THREADS=512']
const TOKENS = ['TOKENS=1 MIXES=6', 'TOKENS=2 MIXES=1']

/**
 * file → the macros it is compiled with, as src/backend/cuda/ops-*.ts gives them; a file that is not here is compiled
 * without. A new macro of a kernel belongs here too.
 * @type {Record<string, string[]>}
 */
const VARIANTS = {
  'active-rows': [1, 2, 3, 4, 5, 6, 7, 8].map((type) => `QUANT=${type}`),
  convert: ['SOURCE=0', 'SOURCE=1', 'SOURCE=2'],
  ddlerp: ['MIXES=5'],
  'deep-embed': ['SIDE=32 TABLE_TYPE=2', 'SIDE=64 TABLE_TYPE=0', 'SIDE=8 TABLE_TYPE=1'],
  embed: ROWS.flatMap((row) =>
    [...[0, 1, 2, '2 OUT_F16=1'], ...[1, 4, 6, 8].map((block) => `3 BLOCK=${block}`)].map(
      (type) => `${row} TABLE_TYPE=${type}`,
    ),
  ),
  fp8: ['SOURCE=1', 'SOURCE=0', 'SOURCE=2'],
  'gather-norm': ROWS,
  'linear-few': ['TOKENS=8 ROW_TILES=1', 'TOKENS=16 ROW_TILES=2', 'TOKENS=32 ROW_TILES=4'],
  'linear-quant': [
    'QUANT=1 TOKENS=8 ROW_TILES=1',
    'QUANT=2 TOKENS=16 ROW_TILES=2',
    'QUANT=3 TOKENS=32 ROW_TILES=2',
    'QUANT=4 TOKENS=8 ROW_TILES=4',
    'QUANT=5 TOKENS=32 ROW_TILES=4',
    'QUANT=6 TOKENS=8 ROW_TILES=2',
    'QUANT=7 TOKENS=16 ROW_TILES=4',
    'QUANT=8 TOKENS=32 ROW_TILES=2',
  ],
  'lay-out-blocks': [
    ...['QUANT=2 BLOCK=1', 'QUANT=5 BLOCK=2', 'QUANT=8 BLOCK=3', 'QUANT=6 BLOCK=4'],
    ...['QUANT=1 BLOCK=5', 'QUANT=5 BLOCK=6', 'QUANT=6 BLOCK=7', 'QUANT=7 BLOCK=8'],
  ],
  'linear-tiles': [
    'QUANT=1 TOKENS=64 STAGES=10',
    'QUANT=1 TOKENS=256 STAGES=5',
    'QUANT=2 TOKENS=128 STAGES=5',
    'QUANT=1 TOKENS=160 STAGES=7',
    'QUANT=3 TOKENS=256 STAGES=3',
    'QUANT=5 TOKENS=256 STAGES=3',
    'QUANT=6 TOKENS=128 STAGES=5',
    'QUANT=7 TOKENS=256 STAGES=2',
  ],
  'linear-sparse': ['COLUMNS=16', 'COLUMNS=32'],
  'low-rank': [
    'TOKENS=64 ROWS=64 STAGES=4 BLOCKS=3',
    'TOKENS=64 ROWS=128 STAGES=4 BLOCKS=2',
    'TOKENS=160 ROWS=128 STAGES=5 BLOCKS=1',
    'TOKENS=256 ROWS=128 STAGES=4 BLOCKS=1',
  ],
  'eight-rows': [
    'TOKENS=8 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=100 FEED=1 STAGE_ROWS=16 SPLIT=4 RING=6 REGION=13824 FIXED=18176 STATE_F16=0',
    'TOKENS=8 BLOCKS=132 WARPS=16 CHANNELS=2048 KEYS=8192 IN_ROWS=51 FEED=1 STAGE_ROWS=16 SPLIT=2 RING=6 REGION=12288 FIXED=18176 STATE_F16=1',
    'TOKENS=8 BLOCKS=132 WARPS=16 CHANNELS=2560 KEYS=10240 IN_ROWS=67 FEED=2 STAGE_ROWS=16 SPLIT=5 RING=4 REGION=12288 FIXED=18304 STATE_F16=0 QUANT=1 ROUNDED_SPLIT=1 IN_WEIGHT=170',
    'TOKENS=8 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=117 FEED=2 STAGE_ROWS=16 SPLIT=4 RING=5 REGION=13824 FIXED=18304 STATE_F16=1 QUANT=3 ROUNDED_SPLIT=1 IN_WEIGHT=136',
    'TOKENS=8 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=110 FEED=2 STAGE_ROWS=16 SPLIT=4 RING=4 REGION=13824 FIXED=18304 STATE_F16=0 QUANT=6 ROUNDED_SPLIT=2 IN_WEIGHT=192',
    'TOKENS=8 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=106 FEED=2 STAGE_ROWS=16 SPLIT=4 RING=5 REGION=13824 FIXED=18304 STATE_F16=1 QUANT=4 ROUNDED_SPLIT=2 IN_WEIGHT=256',
    'TOKENS=8 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=105 FEED=2 STAGE_ROWS=16 SPLIT=4 RING=5 REGION=13824 FIXED=18304 STATE_F16=1 QUANT=1 ROUNDED_SPLIT=2 IN_WEIGHT=272',
  ],
  'few-rows': [
    'TOKENS=2 BLOCKS=132 WARPS=16 CHANNELS=768 KEYS=3072 IN_ROWS=20 MIXES=2 REGION=12288 LIST=3072 STATE_F16=0 ACTIVE=0 FEED=0 LOW_UNITS=5 RING=5 FIXED=14208',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=768 KEYS=3072 IN_ROWS=20 MIXES=2 REGION=6144 LIST=3072 STATE_F16=0 ACTIVE=0 FEED=0 LOW_UNITS=5 RING=5 FIXED=12032',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=192 KEYS=768 IN_ROWS=7 MIXES=2 REGION=1536 LIST=768 STATE_F16=0 ACTIVE=0 FEED=0 LOW_UNITS=5 RING=5 FIXED=8960',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=320 KEYS=12296 IN_ROWS=9 MIXES=2 REGION=16384 LIST=4096 STATE_F16=0 FEED=0 LOW_UNITS=4 RING=5 FIXED=9216',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=192 KEYS=768 IN_ROWS=7 MIXES=2 REGION=3072 LIST=768 STATE_F16=0 FEED=1 STAGE_ROWS=40 SPLIT=1 RING=14 FIXED=7296',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=320 KEYS=12296 IN_ROWS=9 MIXES=2 REGION=16384 LIST=4096 STATE_F16=0 FEED=1 STAGE_ROWS=24 SPLIT=1 RING=13 FIXED=8064',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=2048 KEYS=8192 IN_ROWS=51 MIXES=2 REGION=16384 LIST=4096 STATE_F16=0 FEED=1 STAGE_ROWS=4 SPLIT=1 RING=12 FIXED=10240',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=100 MIXES=2 REGION=16384 LIST=4096 STATE_F16=1 FEED=1 STAGE_ROWS=4 SPLIT=1 RING=6 FIXED=14208',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=768 KEYS=3072 IN_ROWS=26 MIXES=2 REGION=6144 LIST=3072 STATE_F16=0 IN_WEIGHT=27 ACTIVE=0 FEED=2 STAGE_ROWS=8 SPLIT=1 QUANT=2 ROUNDED_ROWS=40 RING=12 FIXED=7552',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=2560 KEYS=10240 IN_ROWS=67 MIXES=2 REGION=20480 LIST=4096 STATE_F16=0 IN_WEIGHT=170 ACTIVE=0 FEED=2 STAGE_ROWS=4 SPLIT=1 QUANT=1 ROUNDED_ROWS=8 RING=8 FIXED=11264',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=105 MIXES=2 REGION=16384 LIST=4096 STATE_F16=0 IN_WEIGHT=272 ACTIVE=1 FEED=2 STAGE_ROWS=4 SPLIT=1 QUANT=1 ROUNDED_ROWS=8 RING=5 FIXED=14336',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=117 MIXES=2 REGION=16384 LIST=4096 STATE_F16=1 IN_WEIGHT=136 ACTIVE=1 FEED=2 STAGE_ROWS=4 SPLIT=1 QUANT=3 ROUNDED_ROWS=16 RING=5 FIXED=14336',
    'TOKENS=1 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=106 MIXES=2 REGION=32768 LIST=4096 STATE_F16=0 IN_WEIGHT=256 ACTIVE=0 FEED=2 STAGE_ROWS=4 SPLIT=1 QUANT=4 ROUNDED_ROWS=8 RING=5 FIXED=14336',
    'TOKENS=2 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=100 MIXES=2 REGION=32768 LIST=4096 STATE_F16=0 FEED=1 STAGE_ROWS=4 SPLIT=1 RING=5 FIXED=22528',
    'TOKENS=2 BLOCKS=132 WARPS=16 CHANNELS=4096 KEYS=16384 IN_ROWS=105 MIXES=2 REGION=32768 LIST=4096 STATE_F16=0 IN_WEIGHT=272 ACTIVE=1 FEED=2 STAGE_ROWS=4 SPLIT=1 QUANT=1 ROUNDED_ROWS=8 RING=4 FIXED=22656',
    'TOKENS=2 BLOCKS=132 WARPS=16 CHANNELS=2560 KEYS=10240 IN_ROWS=70 MIXES=2 REGION=40960 LIST=4096 STATE_F16=0 IN_WEIGHT=120 ACTIVE=0 FEED=2 STAGE_ROWS=4 SPLIT=1 QUANT=6 ROUNDED_ROWS=8 RING=7 FIXED=16640',
  ],
  quantise: [1, 2, 3, 5, 6, 7, 8].map((type) => `QUANT=${type} SOURCE=2`),
  sample: ['CLUSTER=1 THREADS=1024 SCORES=0 BLOCKS=1', 'CLUSTER=8 THREADS=256 SCORES=32 BLOCKS=4'],
  'shift-mix': ROWS.flatMap((row) => TOKENS.map((tokens) => `${row} ${tokens}`)),
  wkv6: ['STATE_F16=0', 'STATE_F16=1'],
  wkv7: ['STATE_F16=0', 'STATE_F16=1'],
  'wkv7-decode': [
    'STATE_F16=0 LOG_HEADS=1024 LOGGED=3',
    'STATE_F16=0 LOG_HEADS=1024 LOGGED=0',
    'STATE_F16=1 LOG_HEADS=1024 LOGGED=0',
  ],
  'wkv7-merge': ['STATE_F16=0 LOGGED=3'],
  'wkv7-chunk': [
    'STATE_F16=0 CLUSTER=1 STAGES=4 GROUPS=1',
    'STATE_F16=0 CLUSTER=2 STAGES=6 GROUPS=2',
    'STATE_F16=1 CLUSTER=2 STAGES=6 GROUPS=1',
    'STATE_F16=1 CLUSTER=1 STAGES=4 GROUPS=2',
  ],
}

const files = readdirSync(sourceDir)
  .filter((name) => name.endsWith('.cu'))
  .map((name) => name.slice(0, -'.cu'.length))

/** The text of a file and of all its includes from this folder. @param {string} name @param {Map<string, string>} seen */
function textsOf(name, seen = new Map()) {
  if (seen.has(name)) return seen
  const text = readFileSync(join(sourceDir, name), 'utf8')
  seen.set(name, text)
  for (const [, included] of text.matchAll(/^\s*#include "([^"]+)"/gm)) textsOf(included, seen)
  return seen
}

/** A commit compiles few-rows once for each FEED, which selects other source. */
const FEEDS = /TOKENS=2 .*FEED=0|STATE_F16=1 .*FEED=[12]/

/** The variants of a file for the first target, and for any other. @param {string} file @param {boolean} isFirst */
function variantsOf(file, isFirst) {
  const variants = VARIANTS[file] ?? ['']
  if (!isFirst) return variants.slice(0, 1)
  if (isAll) return variants
  return file === 'few-rows' ? variants.filter((each) => FEEDS.test(each)) : variants.slice(-1)
}

/** @param {string[]} parts */
function keyOf(parts) {
  const text = JSON.stringify(['spills', ...parts])
  return createHash('sha256').update(text).digest('hex').slice(0, 32)
}

/** @param {string} version @param {string} known */
function listJobs(version, known) {
  const targets = TARGETS.filter((target) => known.includes(`compute_${parseInt(target, 10)}`))
  return files.flatMap((file) => {
    const texts = [...textsOf(`${file}.cu`).values()]
    return targets.flatMap((target, i) =>
      variantsOf(file, i === 0).map((defines) => ({
        name: `${file}.cu${defines && ` (${defines})`} for sm_${target}`,
        key: keyOf([version, target, defines, ...texts]),
        flags: flagsOf(file, target, defines),
      })),
    )
  })
}

/** Widths and types that need every kernel; others differ only in numbers. */
const CARD_MODELS = ['0.1b', '7.2b'].flatMap((size) => [undefined, 'i8', 'q4', 'fp8'].map((type) => ({ size, type })))

/** The kernels that models need on each card. @param {string} version @param {string} known */
async function listCardJobs(version, known) {
  const [{ kernelsOf }, { CARDS, infoOf }, { shapesOnly }, { loadRwkv7 }, { ModelRunner }] = await Promise.all(
    [
      ...['backend/cuda/cuda', 'backend/cuda/driver/cards', 'bench/random-model'],
      ...['model/rwkv7', 'model/run/model-runner'],
    ].map((name) => import(`../dist/${name}.js`)),
  )
  /** @type {Map<string, { name: string, key: string, flags: string[] }>} */
  const jobs = new Map()
  for (const [card, facts] of Object.entries(CARDS)) {
    const info = infoOf(facts)
    const capability = info.computeCapability.join('')
    if (!known.includes(`compute_${capability}`)) continue
    const target = capability === '90' ? '90a' : capability
    for (const { size, type } of CARD_MODELS) {
      if (type === 'fp8' && Number(capability) < 89) continue
      const kernels = kernelsOf(info, 'f32', (backend) => {
        const model = loadRwkv7(shapesOnly(size), backend, { weightType: type })
        new ModelRunner(model, backend, { numSlots: 256, maxTokens: 2048, fingerprint: '' })
      })
      for (const [file, macros] of kernels) {
        const defines = Object.entries(macros).map(([name, value]) => `${name}=${value}`)
        const text = defines.join(' ')
        const key = keyOf([version, target, text, ...textsOf(`${file}.cu`).values()])
        const flags = flagsOf(file, target, text)
        jobs.set(key, { name: `${file}.cu (${text}) for ${card}, sm_${target}`, key, flags })
      }
    }
  }
  return [...jobs.values()]
}

/** Says which of ptxas' counts is too high; null if none. @param {string} job @param {string} output */
function excessIn(job, output) {
  const spilled = [...output.matchAll(/(\d+) bytes spill stores/g)].map(([, bytes]) => Number(bytes))
  const most = Math.max(0, ...spilled)
  return most > mostSpilledBytes(job) ? `spills ${most} bytes of registers` : null
}

/** @param {string} file @param {string} target @param {string} defines */
function flagsOf(file, target, defines) {
  return [
    ...['-cubin', `-gencode=arch=compute_${target},code=sm_${target}`, '-std=c++17'],
    ...['-Werror', 'all-warnings', '-Xptxas', '-v', '-o', '/dev/null'],
    ...defines.split(' ').flatMap((define) => (define === '' ? [] : [`-D${define}`])),
    join(sourceDir, `${file}.cu`),
  ]
}

/** @param {string[]} flags @returns {Promise<{ code: number | null, output: string }>} */
function compile(flags) {
  return new Promise((resolve) => {
    const child = spawn('nvcc', flags, { stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (text) => {
        output += text
      })
    child.on('error', (error) => resolve({ code: -1, output: error.message }))
    child.on('close', (code) => resolve({ code, output }))
  })
}

/** @returns {string[]} */
function readPassed() {
  try {
    return JSON.parse(readFileSync(passedFile, 'utf8'))
  } catch {
    return []
  }
}

async function main() {
  const version = spawnSync('nvcc', ['--version'], { encoding: 'utf8' })
  if (version.status !== 0) {
    console.log('cuda kernels: not checked, nvcc is not installed')
    return
  }
  const known = spawnSync('nvcc', ['--list-gpu-arch'], { encoding: 'utf8' }).stdout
  const jobs = [...listJobs(version.stdout, known), ...(isAll ? await listCardJobs(version.stdout, known) : [])]
  const before = new Set(readPassed())
  const waiting = jobs.filter(({ key }) => !before.has(key))
  const passed = jobs.filter(({ key }) => before.has(key)).map(({ key }) => key)
  const started = performance.now()
  const total = waiting.length
  const worker = async () => {
    for (let job = waiting.shift(); job !== undefined; job = waiting.shift()) {
      const { code, output } = await compile(job.flags)
      const excess = excessIn(job.name, output)
      if (code === 0 && excess === null) passed.push(job.key)
      else if (code === 0) {
        process.exitCode = 1
        console.error(`cuda kernels: ${job.name} ${excess}`)
      } else {
        process.exitCode = 1
        console.error(`cuda kernels: ${job.name} does not compile:\n${output}`)
      }
    }
  }
  await Promise.all(Array.from({ length: availableParallelism() }, worker))
  mkdirSync(buildDir, { recursive: true })
  // A smaller check keeps the results of a full one.
  writeFileSync(passedFile, JSON.stringify([...new Set([...(isAll ? [] : before), ...passed])]))
  const seconds = ((performance.now() - started) / 1000).toFixed(1)
  console.log(
    `cuda kernels: ${jobs.length} compilations, ${total} new (${seconds} s), ${jobs.length - passed.length} failed`,
  )
}

await main()
