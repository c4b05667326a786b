#!/usr/bin/env node
/**
 * Compares one model on one GPU, by layers over 2 and 4, and whole on each of 2 and 4: prints a table of tokens/s. Also
 * checks that the layers over all GPUs, each with less memory than the model, give the same tokens as one GPU.
 *
 *   node scripts/bench-gpus.js [--size 7.2b] [--rows 64,320,960] [--memory-gb 10] [--out FOLDER]
 *
 * Runs the TypeScript sources: Node 22.18 or later. Logs go into FOLDER, the table to standard output.
 */
import { spawn, spawnSync } from 'node:child_process'
import { mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'

const { values } = parseArgs({
  options: {
    size: { type: 'string', default: '7.2b' },
    rows: { type: 'string', default: '64,320,960' },
    'memory-gb': { type: 'string', default: '10' },
    out: { type: 'string', default: '.gpu/out' },
  },
})
const { size, out } = values
const rows = values.rows.split(',').map(Number)
const numGpus = spawnSync('nvidia-smi', ['-L'], { encoding: 'utf8' })
  .stdout.split('\n')
  .filter((line) => line.startsWith('GPU ')).length
const devices = (count) => Array.from({ length: count }, (_, i) => i).join(',')
const started = Date.now()
mkdirSync(out, { recursive: true })

/** Runs one of our programs. Resolves to its standard output, or null on failure (its log is in FOLDER). */
function run(name, ...args) {
  const log = openSync(join(out, `${name}.log`), 'w')
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', log] })
  let text = ''
  child.stdout.on('data', (data) => {
    text += data
  })
  return new Promise((resolve) => {
    child.on('close', (code) => {
      const seconds = ((Date.now() - started) / 1000).toFixed(0)
      process.stderr.write(`${name}: ${code === 0 ? 'ok' : `failed (${code})`} at ${seconds} s\n`)
      writeFileSync(join(out, `${name}.json`), text)
      resolve(code === 0 ? text.trim() : null)
    })
  })
}

/** tokens/s of each case by name, of steps and through the engine's loop; empty if the bench failed. */
async function bench(name, decode, prefill, ...where) {
  const text = await run(
    name,
    ...['src/cli/main.ts', 'bench', 'engine', '--json', '--size', size],
    ...['--repeats', '8', '--seconds', '0.5', '--decode', decode.join(','), '--prefill', prefill],
    ...where,
  )
  const { rows: cases, served } = text === null ? { rows: [], served: [] } : JSON.parse(text)
  const steps = cases.map(({ kind, batch, tokens, step }) => [
    kind === 'decode' ? batch : `${batch}x${tokens}`,
    step.tokensPerSecond,
  ])
  return new Map([...steps, ...served.map(({ tokensPerSecond }, i) => [`loop ${decode[i]}`, tokensPerSecond])])
}

const PREFILL = '1x2048,8x512'
const one = (device) => bench('one', [1, ...rows], PREFILL, '--device', `cuda:${device}`)
const layers = (count, more = []) =>
  bench(`layers-${count}`, [1, ...rows, ...more], PREFILL, '--pp-devices', devices(count))

/** Each worker has its part of the rows. Returns the sum of their speeds at the same time. */
async function workers(count) {
  const parts = [1, ...rows.map((n) => Math.floor(n / count))]
  const all = await Promise.all(
    Array.from({ length: count }, (_, i) => bench(`workers-${count}-${i}`, parts, '', '--device', `cuda:${i}`)),
  )
  const sum = (part) => all.reduce((total, speeds) => total + (speeds.get(part) ?? Number.NaN), 0)
  const whole = [count, ...rows]
  return new Map([
    ...whole.map((n, i) => [n, sum(parts[i])]),
    ...whole.map((n, i) => [`loop ${n}`, sum(`loop ${parts[i]}`)]),
  ])
}

function greedy(name, model, where, ...more) {
  return run(name, 'test/cuda/greedy.ts', model, where, '32', '32', ...more)
}

function column(speeds, key) {
  const speed = speeds.get(key)
  return speed === undefined ? '' : speed.toFixed(0)
}

function printTable(columns) {
  const keys = [...new Set(columns.flatMap(([, speeds]) => [...speeds.keys()]))]
  const lines = [
    ['tokens/s', ...columns.map(([name]) => name)],
    ...keys.map((key) => [
      typeof key === 'number' ? `decode ${key}` : key.replace(/^(\d)/, 'prefill $1'),
      ...columns.map(([, speeds]) => column(speeds, key)),
    ]),
  ]
  const widths = lines[0].map((_, i) => Math.max(...lines.map((line) => line[i].length)))
  for (const line of lines)
    console.log(line.map((cell, i) => (i ? cell.padStart(widths[i]) : cell.padEnd(widths[i]))).join('  '))
}

const write = `import('./src/cli/bench/random-model.ts').then((m) => console.log(m.randomModel('${size}')))`
const model = await run('model', '-e', write)
if (model === null) process.exit(1)
const columns = []
// Of four GPUs the last two are free while the first two share the layers.
const [single, pair] = numGpus >= 4 ? await Promise.all([one(3), layers(2)]) : [await one(0), await layers(2)]
columns.push(['1 GPU', single], ['layers over 2', pair])
if (numGpus >= 4) columns.push(['layers over 4', await layers(4, [2 * Math.max(...rows)])])
const memory = values['memory-gb']
const [whole, refused, two] = await Promise.all([
  greedy('greedy-one', model, `cuda:${numGpus - 1}`),
  numGpus >= 4 ? greedy('greedy-refused', model, 'cuda:2', memory) : null,
  numGpus >= 4 ? workers(2) : null,
])
const split = await greedy('greedy-layers', model, devices(numGpus).replace(/\d+/g, 'cuda:$&'), memory)
columns.push(['2 workers', two ?? (await workers(2))])
if (numGpus >= 4) columns.push(['4 workers', await workers(4)])
printTable(columns)
const same = whole !== null && whole === split
console.log(`greedy tokens over ${numGpus} GPUs of ${memory} GB each = those of one: ${same}`)
if (numGpus >= 4) {
  const log = readFileSync(join(out, 'greedy-refused.log'), 'utf8')
  const why = /SkeinError: (.*)/.exec(log)?.[1] ?? 'see its log'
  console.log(`one GPU of ${memory} GB: ${refused === null ? `refused, ${why}` : 'it fits'}`)
}
process.exitCode = same ? 0 : 1
