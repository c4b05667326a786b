/** V8's threads of a process get a lower priority than its event loop. */
import { execFileSync } from 'node:child_process'
import { getPriority } from 'node:os'
import { expect, test } from 'vitest'

/** The threads for files are there first: older versions of Node read the program itself with them. */
const SCRIPT = `
import { pbkdf2 } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { getPriority } from 'node:os'
import { promisify } from 'node:util'
await readFile('/proc/self/comm')
import { lowerHelpers } from '${new URL('../../dist/threads/helpers.js', import.meta.url)}'
const before = getPriority()
lowerHelpers()
const own = (thread) => getPriority(thread) - before
const work = () => promisify(pbkdf2)('', '', 100_000, 32, 'sha256')
await Promise.all([work(), work(), work(), work()])
const ticks = (thread) => Number(readFileSync('/proc/self/task/' + thread + '/stat', 'utf8').split(') ')[1].split(' ')[11])
const others = readdirSync('/proc/self/task').map(Number).filter((thread) => thread !== process.pid)
const busy = others.filter((thread) => ticks(thread) > 1)
console.log(JSON.stringify({ loop: own(process.pid), others: others.map(own), busy: busy.map(own) }))
`

test.skipIf(process.platform !== 'linux')(
  'threads of V8 are lowered; the loop and those that work for requests are not',
  () => {
    const text = execFileSync(process.execPath, ['--input-type=module', '-e', SCRIPT], { encoding: 'utf8' })
    const { loop, others, busy } = JSON.parse(text) as Record<'others' | 'busy', number[]> & { loop: number } // SCRIPT prints it
    const lowered = Math.min(19, getPriority() + 10) - getPriority()
    expect(loop).toBe(0)
    // The four of V8 and the one for delayed tasks.
    expect(others.filter((priority) => priority === lowered).length).toBeGreaterThanOrEqual(5)
    expect(busy.length).toBeGreaterThan(0)
    for (const priority of busy) expect(priority).toBe(0)
  },
)
