/** V8's threads of a process get a lower priority than its event loop. */
import { execFileSync } from 'node:child_process'
import { getPriority } from 'node:os'
import { expect, test } from 'vitest'

const SCRIPT = `
import { readdirSync } from 'node:fs'
import { getPriority } from 'node:os'
import { lowerHelpers } from '${new URL('../../dist/threads/helpers.js', import.meta.url)}'
const before = getPriority()
lowerHelpers()
const own = (thread) => getPriority(thread) - before
const others = readdirSync('/proc/self/task').map(Number).filter((thread) => thread !== process.pid)
console.log(JSON.stringify({ loop: own(process.pid), others: others.map(own) }))
`

test.skipIf(process.platform !== 'linux')('threads beside the event loop are lowered, and the loop is not', () => {
  const text = execFileSync(process.execPath, ['--input-type=module', '-e', SCRIPT], { encoding: 'utf8' })
  const { loop, others } = JSON.parse(text) as { loop: number; others: number[] } // SCRIPT prints it
  const lowered = Math.min(19, getPriority() + 10) - getPriority()
  expect(loop).toBe(0)
  // The four of V8 and the one for delayed tasks; those for files may be there, and named or not.
  expect(others.filter((priority) => priority === lowered).length).toBeGreaterThanOrEqual(5)
})
