/**
 * Compiles the kernels of kernels/cuda with nvcc, to find errors on machines without a GPU, and holds what ptxas says of
 * them against the cards of backend/cuda/driver/cards.ts: a block's shared memory, the registers of all its threads, and
 * registers that are spilled. Of each file one variant for Hopper and one for another generation, so that all seven have
 * some. --all compiles every variant for every generation, and what models need on every card, whose launches are known too
 * (needs dist). What passed before is not compiled again. Without nvcc it prints a message and succeeds. It does not check
 * results.
 */
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const sourceDir = join(root, 'kernels/cuda')
const buildDir = join(root, 'kernels/build')
const factsFile = join(buildDir, 'cuda-facts.json')

/** Hopper, Turing, Ampere (A100), Ampere (RTX), Ada, Blackwell of data centres and of desktops. */
const TARGETS = ['90a', '75', '80', '86', '89', '100', '120']

/** Registers of a multiprocessor, of which threads are given eight at a time and 32 threads together. */
const REGISTERS = 65_536

/**
 * Bytes of registers that a kernel may spill. Eight blocks of `sample` hold a row's scores in registers, and some of the
 * rest is stored. Two tokens of wide models spill 476 on Blackwell, where one launch for them is not measured
 * (docs/dev/cards.md).
 * @param {string} job
 */
function mostSpilledBytes(job) {
  if (/^few-rows\.cu \(.*TOKENS=2 .* for .*sm_1[02]0/.test(job)) return 480
  // Chosen from 9.0 on.
  if (/^eight-rows.* for sm_[78]/.test(job)) return Number.POSITIVE_INFINITY
  return job.startsWith('sample.cu') ? 256 : 128
}

const isAll = process.argv.includes('--all')
/** How often a long run puts down what it has. */
const SAVE_MS = 10_000
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
    'QUANT=1 TOKENS=64 WARPGROUPS=2 UNITS=1 STAGES=6',
    'QUANT=1 TOKENS=160 WARPGROUPS=2 UNITS=1 STAGES=3',
    'QUANT=1 TOKENS=256 WARPGROUPS=2 UNITS=1 STAGES=5',
    'QUANT=1 TOKENS=160 WARPGROUPS=2 UNITS=2 STAGES=5',
    'QUANT=2 TOKENS=128 WARPGROUPS=2 UNITS=1 STAGES=5',
    'QUANT=2 TOKENS=128 WARPGROUPS=3 UNITS=1 STAGES=5',
    'QUANT=3 TOKENS=256 WARPGROUPS=2 UNITS=1 STAGES=3',
    'QUANT=3 TOKENS=160 WARPGROUPS=3 UNITS=1 STAGES=4',
    'QUANT=5 TOKENS=256 WARPGROUPS=2 UNITS=1 STAGES=3',
    'QUANT=6 TOKENS=128 WARPGROUPS=2 UNITS=1 STAGES=5',
    'QUANT=7 TOKENS=256 WARPGROUPS=2 UNITS=1 STAGES=2',
    'QUANT=7 TOKENS=160 WARPGROUPS=2 UNITS=2 STAGES=3',
    'QUANT=4 TOKENS=128 WARPGROUPS=2 UNITS=1 STAGES=4',
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
  quantise: [1, 2, 3, 4, 5, 6, 7, 8].map((type) => `QUANT=${type} SOURCE=2`),
  sample: [
    'CLUSTER=1 THREADS=1024 SCORES=0 BLOCKS=1',
    ...[4, 1].map((n) => `CLUSTER=8 THREADS=256 SCORES=32 BLOCKS=${n}`),
  ],
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

/** Clusters are chosen from 9.0 on, and groups of wkv7-chunk on Hopper. @param {string} target @param {string} defines */
function isOf(target, defines) {
  if (target === '90a') return true
  return !/GROUPS=[2-9]/.test(defines) && (Number.parseInt(target, 10) > 90 || !/CLUSTER=[2-9]/.test(defines))
}

/** The variants of a file for a target, as far as this run has any. @param {string} file @param {string} target */
function variantsOf(file, target) {
  const variants = (VARIANTS[file] ?? ['']).filter((each) => isOf(target, each))
  if (isAll) return variants
  if (target === '90a') return file === 'few-rows' ? variants.filter((each) => FEEDS.test(each)) : variants.slice(-1)
  // An error in the source shows on any chip.
  const others = TARGETS.slice(1)
  return target === others[files.indexOf(file) % others.length] ? variants.slice(0, 1) : []
}

/** @param {string[]} parts */
function keyOf(parts) {
  const text = JSON.stringify(['facts', ...parts])
  return createHash('sha256').update(text).digest('hex').slice(0, 32)
}

/**
 * @typedef {{ card: string, label: string, threads: number, sharedBytes: number }} Launch
 * @typedef {{ name: string, key: string, flags: string[], file: string, target: string, defines: string, launches: Launch[] }} Job
 */

/** @param {string} version @param {string} file @param {string} target @param {string} defines @returns {Job} */
function jobOf(version, file, target, defines) {
  return {
    name: `${file}.cu${defines && ` (${defines})`} for sm_${target}`,
    key: keyOf([version, target, defines, ...textsOf(`${file}.cu`).values()]),
    flags: flagsOf(file, target, defines),
    ...{ file, target, defines, launches: [] },
  }
}

/** @param {string} version @param {string[]} targets */
function listJobs(version, targets) {
  return files.flatMap((file) =>
    targets.flatMap((target) => variantsOf(file, target).map((defines) => jobOf(version, file, target, defines))),
  )
}

/** Widths and types that need every kernel; others differ only in numbers. */
const CARD_MODELS = ['0.1b', '7.2b'].flatMap((size) => [undefined, 'i8', 'q4', 'fp8'].map((type) => ({ size, type })))

/** Tokens of the rows of steps that together launch every kernel of a step. */
const STEPS = [
  ...[1, 2, 3, 8, 16, 32, 64, 256].map((rows) => new Array(rows).fill(1)),
  ...[[2], [5], [16], [40], [300], [2048], [1, 1, 1, 40], [1, 5, 300]],
]

/** The kernels that models need on each card, with their launches there. @param {string} version @param {string[]} targets */
async function listCardJobs(version, targets) {
  const [{ kernelsOf }, { CARDS, infoOf }, { shapesOnly }, { sampleSpec }, { loadRwkv7 }, { ModelRunner }] =
    await Promise.all(
      [
        ...['backend/cuda/cuda', 'backend/cuda/driver/cards', 'bench/random-model'],
        ...['bench/plain-request', 'model/rwkv7', 'model/run/model-runner'],
      ].map((name) => import(`../dist/${name}.js`)),
    )
  /** @type {Map<string, Job>} */
  const jobs = new Map()
  for (const [card, facts] of Object.entries(CARDS)) {
    const info = infoOf(facts)
    const target = targetOf(info)
    if (!targets.includes(target)) continue
    for (const { size, type } of CARD_MODELS) {
      if (type === 'fp8' && Number.parseInt(target, 10) < 89) continue
      /** @type {Map<string, Launch>} */
      const launches = new Map()
      const build = (backend) => {
        const model = loadRwkv7(shapesOnly(size), backend, { weightType: type })
        const runner = new ModelRunner(model, backend, { numSlots: 256, maxTokens: 2048, fingerprint: '' })
        for (const lengths of STEPS)
          runner.step(
            lengths.map((length, slot) => ({ slot, tokens: new Int32Array(length), samples: [sampleSpec({ slot })] })),
          )
      }
      const onLaunch = ({ label }, threads, sharedBytes) => {
        const one = `${label} ${threads} ${sharedBytes}`
        launches.set(one, { card, label, threads, sharedBytes })
      }
      const kernels = kernelsOf(info, 'f32', build, { onLaunch })
      for (const [file, macros] of kernels) {
        const defines = Object.entries(macros).map(([name, value]) => `${name}=${value}`)
        const made = jobOf(version, file, target, defines.join(' '))
        const job = jobs.get(made.key) ?? made
        const isOfJob = ({ label }) => label.startsWith(`${file}.cu: `) && label.endsWith(labelEnd(macros))
        job.launches.push(...[...launches.values()].filter(isOfJob))
        jobs.set(job.key, job)
      }
    }
  }
  return [...jobs.values()]
}

/** As KernelStore ends a kernel's label. @param {Record<string, string | number>} macros */
function labelEnd(macros) {
  const values = Object.entries(macros).sort(([a], [b]) => (a < b ? -1 : 1))
  return values.length === 0 ? '' : ` {${values.map(([name, value]) => `${name}: ${value}`).join(', ')}}`
}

/** Of a card. @param {{ computeCapability: readonly number[] }} info */
function targetOf({ computeCapability }) {
  const capability = computeCapability.join('')
  return TARGETS.find((target) => Number.parseInt(target, 10) === Number(capability)) ?? capability
}

/** @typedef {Record<string, { registers: number, shared: number, spilled: number }>} Facts */

/** What ptxas says of each kernel. @param {string} output @returns {Facts} */
function factsIn(output) {
  const parts = output.split(/Compiling entry function '(\w+)'/).slice(1)
  const number = (/** @type {string} */ text, /** @type {RegExp} */ pattern) => Number(pattern.exec(text)?.[1] ?? 0)
  return Object.fromEntries(
    Array.from({ length: parts.length / 2 }, (_, i) => {
      const text = parts[2 * i + 1] ?? ''
      const registers = number(text, /Used (\d+) registers/)
      const spilled = number(text, /(\d+) bytes spill stores/)
      return [parts[2 * i], { registers, shared: number(text, /(\d+) bytes smem/), spilled }]
    }),
  )
}

/** What is too much for a card, in sentences. @param {Job} job @param {Facts} facts @param {Map<string, number>} sharedOf */
function excessesOf({ name, file, target, launches }, facts, sharedOf) {
  const found = []
  const most = mostSpilledBytes(name)
  for (const [kernel, { registers, shared, spilled }] of Object.entries(facts)) {
    if (spilled > most) found.push(`${kernel} spills ${spilled} bytes of registers`)
    const least = sharedOf.get(target) ?? Number.POSITIVE_INFINITY
    if (shared > least) found.push(`${kernel} has ${shared} bytes of shared memory, a block ${least}`)
    for (const { card, label, threads, sharedBytes } of launches) {
      if (!`${label} `.startsWith(`${file}.cu: ${kernel} `)) continue
      const all = shared + sharedBytes
      const has = sharedOf.get(card) ?? 0
      if (all > has) found.push(`${kernel} takes ${all} bytes of shared memory, a block of a ${card} has ${has}`)
      const taken = 8 * Math.ceil(registers / 8) * 32 * Math.ceil(threads / 32)
      if (taken > REGISTERS) found.push(`${kernel} takes ${taken} registers with ${threads} threads on a ${card}`)
    }
  }
  return found
}

/** Bytes of shared memory that a block can have: of each card, and the least of a target. Needs dist. */
async function readSharedBytes() {
  /** @type {Map<string, number>} */
  const shared = new Map()
  const { CARDS, infoOf } = await import('../dist/backend/cuda/driver/cards.js')
  for (const [card, facts] of Object.entries(CARDS)) {
    const info = infoOf(facts)
    const target = targetOf(info)
    shared.set(card, info.sharedBytesPerBlock)
    shared.set(target, Math.min(shared.get(target) ?? Number.POSITIVE_INFINITY, info.sharedBytesPerBlock))
  }
  return shared
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

/** What is known of earlier compilations. @returns {Record<string, Facts>} */
function readFacts() {
  try {
    return JSON.parse(readFileSync(factsFile, 'utf8'))
  } catch {
    return {}
  }
}

/** @param {Record<string, Facts>} facts */
function writeFacts(facts) {
  mkdirSync(buildDir, { recursive: true })
  writeFileSync(`${factsFile}.new`, JSON.stringify(facts))
  renameSync(`${factsFile}.new`, factsFile)
}

/** Kernels without a bound of their threads may be given more registers than a block's threads have. */
function checkBounds() {
  for (const file of files) {
    const text = readFileSync(join(sourceDir, `${file}.cu`), 'utf8')
    const unbound = [...text.matchAll(/__global__(?!\s+void\s+__launch_bounds__)[^(]*/g)]
    for (const [found] of unbound) fail(`${file}.cu: no __launch_bounds__ in "${found.trim()}"`)
  }
}

/** @param {string} what */
function fail(what) {
  process.exitCode = 1
  console.error(`cuda kernels: ${what}`)
}

async function main() {
  const version = spawnSync('nvcc', ['--version'], { encoding: 'utf8' })
  if (version.status !== 0) {
    console.log('cuda kernels: not checked, nvcc is not installed')
    return
  }
  const known = spawnSync('nvcc', ['--list-gpu-arch'], { encoding: 'utf8' }).stdout
  const targets = TARGETS.filter((target) => known.includes(`compute_${Number.parseInt(target, 10)}`))
  checkBounds()
  const jobs = new Map(listJobs(version.stdout, targets).map((job) => [job.key, job]))
  for (const job of isAll ? await listCardJobs(version.stdout, targets) : []) jobs.set(job.key, job)
  const sharedOf = isAll ? await readSharedBytes() : new Map()
  const before = readFacts()
  /** @type {Record<string, Facts>} */
  const facts = { ...before }
  const waiting = [...jobs.values()].filter(({ key }) => facts[key] === undefined)
  const total = waiting.length
  const started = performance.now()
  let savedAt = started
  const worker = async () => {
    for (let job = waiting.shift(); job !== undefined; job = waiting.shift()) {
      const { code, output } = await compile(job.flags)
      if (code === 0) facts[job.key] = factsIn(output)
      else fail(`${job.name} does not compile:\n${output}`)
      if (performance.now() < savedAt + SAVE_MS) continue
      savedAt = performance.now()
      writeFacts(facts)
    }
  }
  await Promise.all(Array.from({ length: availableParallelism() }, worker))
  // A full check forgets what nothing asks for any more.
  writeFacts(isAll ? Object.fromEntries(Object.entries(facts).filter(([key]) => jobs.has(key))) : facts)
  for (const job of jobs.values())
    for (const excess of excessesOf(job, facts[job.key] ?? {}, sharedOf)) fail(`${job.name}: ${excess}`)
  const seconds = ((performance.now() - started) / 1000).toFixed(1)
  const numLaunches = [...jobs.values()].reduce((sum, { launches }) => sum + launches.length, 0)
  console.log(
    `cuda kernels: ${jobs.size} compilations for ${targets.join(', ')}, ${total} new (${seconds} s)` +
      `${isAll ? `, ${numLaunches} launches on cards` : ''}${process.exitCode ? ', FAILED' : ''}`,
  )
}

await main()
