/**
 * Converts plans that were tuned on a card (the file in the cache folder's gemm/) into plans that ship with Skein:
 *
 *   node scripts/known-plans.js FILE kernels/plans/h200-130100.json "NVIDIA H200" ["NVIDIA H100 80GB HBM3" …]
 *
 * A process tunes for five seconds at the most: start again until the file no longer grows. Every named card has the
 * chip that the plans were tuned on. Plans that OUT already has stay.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'

const [file, out, ...gpus] = process.argv.slice(2)
if (gpus.length === 0) throw new Error('FILE OUT GPU… are needed')
const { machine, plans } = JSON.parse(readFileSync(file, 'utf8'))
const before = existsSync(out) ? JSON.parse(readFileSync(out, 'utf8')) : { algorithms: [], plans: {} }
/** @type {Map<string, string>} key → algorithm */
const all = new Map(Object.entries(before.plans).map(([key, i]) => [key, before.algorithms[i]]))
for (const [key, { algorithm }] of Object.entries(plans)) all.set(key, algorithm)
const algorithms = [...new Set(all.values())].sort()
const lines = (/** @type {string[]} */ list) => list.join(',\n')
const keys = [...all].sort(([a], [b]) => (a < b ? -1 : 1))
const entries = keys.map(([key, one]) => `${JSON.stringify(key)}: ${algorithms.indexOf(one)}`)
const text = `{
"gpus": ${JSON.stringify(gpus)},
"cublasLt": ${machine.cublasLt},
"algorithms": [
${lines(algorithms.map((one) => JSON.stringify(one)))}
],
"plans": {
${lines(entries)}
}
}
`
writeFileSync(out, text)
console.log(`${out}: ${all.size} plans, ${algorithms.length} algorithms, ${text.length} bytes`)
