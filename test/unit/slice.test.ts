/** The gateway's event loop asks Linux for short slices; its workers have the usual ones. */
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { getPriority, release } from 'node:os'
import { expect, test } from 'vitest'

const MODULE = new URL('../../dist/host/slice.js', import.meta.url).href
const OF_THREADS = `
const sliceOf = (thread) => Number(/se\\.slice\\s*:\\s*(\\d+)/.exec(readFileSync('/proc/self/task/' + thread + '/sched', 'utf8'))[1])
const slices = () => readdirSync('/proc/self/task').map((thread) => [Number(thread), sliceOf(thread)])
`
const CHILD = `
import { readdirSync, readFileSync } from 'node:fs'
import { usualSlices } from '${MODULE}'
${OF_THREADS}
const before = slices().map(([, slice]) => slice)
usualSlices()
console.log(JSON.stringify({ before, after: slices().map(([, slice]) => slice) }))
`
const SCRIPT = `
import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { getPriority, setPriority } from 'node:os'
import { shortenSlice } from '${MODULE}'
${OF_THREADS}
setPriority(Math.min(19, getPriority() + 1))
const [usual] = slices().find(([thread]) => thread === process.pid).slice(1)
shortenSlice()
const own = (all) => all.filter(([thread]) => thread === process.pid)[0][1]
const others = slices().filter(([thread]) => thread !== process.pid).map(([, slice]) => slice)
const child = JSON.parse(execFileSync(process.execPath, ['--input-type=module', '-e', ${JSON.stringify(CHILD)}], { encoding: 'utf8' }))
console.log(JSON.stringify({ usual, loop: own(slices()), others, priority: getPriority(), child }))
`

const [major = 0, minor = 0] = release().split('.').map(Number)
const hasSlices =
  process.platform === 'linux' &&
  (major > 6 || (major === 6 && minor >= 12)) &&
  ['x64', 'arm64'].includes(process.arch) &&
  existsSync('/proc/self/sched') &&
  readFileSync('/proc/self/sched', 'utf8').includes('se.slice')

test.skipIf(!hasSlices)('the loop has a short slice, and other threads and workers the usual one', () => {
  const text = execFileSync(process.execPath, ['--input-type=module', '-e', SCRIPT], { encoding: 'utf8' })
  const { usual, loop, others, priority, child } = JSON.parse(text)
  expect(usual).toBeGreaterThan(100_000)
  expect(loop).toBe(100_000)
  expect(new Set(others)).toEqual(new Set([usual]))
  // Its priority is still its own.
  expect(priority).toBe(Math.min(19, getPriority() + 1))
  // Processes inherit it, and undo that.
  expect(new Set(child.before)).toContain(100_000)
  expect(new Set(child.after)).toEqual(new Set([usual]))
})
