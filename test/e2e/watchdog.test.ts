/** A process that hangs ends itself and reports where, one that computes does not; systemd is told that it lives. */
import { spawn } from 'node:child_process'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, test } from 'vitest'
import { cpuReport } from '../../src/backend/cpu/isa.ts'
import { openLibrary } from '../../src/backend/ffi.ts'
import { openNotifier } from '../../src/host/watchdog.ts'

const DIST = pathToFileURL(join(import.meta.dirname, '../../dist')).href
const NIGHT = { tags: 'night', timeout: 180_000 }

function run(code: string): Promise<{ signal: string | null; stderr: string; code: number | null }> {
  const file = join(mkdtempSync(join(tmpdir(), 'skein-hang-')), 'hang.mjs')
  writeFileSync(file, `import { watchEventLoop } from '${DIST}/host/watchdog.js'\n${code}`)
  const child = spawn(process.execPath, [file], { stdio: ['ignore', 'ignore', 'pipe'] })
  let stderr = ''
  child.stderr.on('data', (bytes) => {
    stderr += bytes
  })
  return new Promise((resolve) => {
    child.on('close', (code, signal) => resolve({ code, signal, stderr }))
  })
}

async function endsAt(spin: string): Promise<void> {
  const { signal, stderr } = await run(`watchEventLoop(2000)\n${spin}\nsetTimeout(() => { spin(); spin() }, 500)`)
  expect(signal).toBe('SIGKILL')
  expect(stderr).toMatch(/the event loop has stood still for \d+ s/)
  expect(stderr).toContain('hang.mjs:')
}

test('a hang in a loop ends the process, with the location of the hang', { timeout: 180_000 }, () =>
  endsAt('function spin() { for (;;) Math.sqrt(2) }'),
)

test('and so does one in a pattern', NIGHT, () => endsAt("function spin() { /(a+)+$/.test('a'.repeat(50) + 'b') }"))

// One call of native code that takes three seconds of a core, as a step of a large model does.
const LONG_STEP = `
import { createCpuBackend } from '${DIST}/backend/cpu/cpu.js'
import { openedLibraries } from '${DIST}/backend/cpu/context.js'
import { createBatch } from '${DIST}/backend/batch.js'
const size = 1024
const capacity = { tokens: 256, rows: 1, logits: 1, samples: 1 }
const backend = createCpuBackend({ threads: 1 })
const bytes = new Uint8Array(new Float32Array(size * size).fill(0.1).buffer)
const readRows = (start, end) => bytes.subarray(4 * size * start, 4 * size * end)
const source = { name: 'w', rows: size, columns: size, dtype: 'f32', readRows }
const weight = backend.matrix(source, 'f32')
const [x, y] = [0, 1].map(() => backend.activation([capacity.tokens, size]))
const recorded = (count) => backend.record(capacity, (ops) => {
  for (let i = 0; i < count; i++) ops.linear([{ x, y, weight }])
})
const batch = { ...createBatch(capacity), numTokens: capacity.tokens }
const timed = (program) => {
  const { user } = process.cpuUsage()
  program.run(batch)
  return (process.cpuUsage().user - user) / 1000
}
const few = recorded(4)
const long = recorded(Math.ceil((4 * 3000) / Math.min(timed(few), timed(few), timed(few))))
watchEventLoop(1000, WATCHED)
await new Promise((resolve) => setTimeout(resolve, 300))
if (timed(long) < 2000) console.error('the step was too short')`

test.skipIf(cpuReport().problem !== null)(
  'a step that takes long is left alone, because kernels count',
  { timeout: 180_000 },
  async () => {
    expect(await run(LONG_STEP.replace('WATCHED', 'openedLibraries()'))).toMatchObject({ code: 0, stderr: '' })
    // The same step, were it not counted.
    expect(await run(LONG_STEP.replace('WATCHED', '[]'))).toMatchObject({ signal: 'SIGKILL' })
  },
)

test('a computation of this process and a call that is known to take long are left alone', NIGHT, async () => {
  const spin = (what: string) => `import { countPiece, longCall } from '${DIST}/threads/work-done.js'
  watchEventLoop(1000)
  const busy = (ms, each) => { for (const end = Date.now() + ms; Date.now() < end; ) each() }
  await new Promise((resolve) => setTimeout(resolve, 300))
  ${what}`
  expect(await run(spin('busy(3000, countPiece)'))).toMatchObject({ code: 0, stderr: '' })
  expect(await run(spin('longCall(() => busy(3000, () => {}))'))).toMatchObject({ code: 0, stderr: '' })
  expect(await run(spin('longCall(() => {}); busy(1e6, () => {})'))).toMatchObject({ signal: 'SIGKILL' })
})

test('a busy process whose loop turns is left alone, and the watchdog keeps no process alive', NIGHT, async () => {
  const busy = `for (let i = 0; i < 40; i++) {
    const end = Date.now() + 100
    while (Date.now() < end);
    await new Promise(setImmediate)
  }`
  expect(await run(`watchEventLoop(2000)\n${busy}`)).toMatchObject({ code: 0, stderr: '' })
})

test.skipIf(process.platform !== 'linux')('systemd hears what it waits for', NIGHT, () => {
  const path = join(mkdtempSync(join(tmpdir(), 'skein-notify-')), 'socket')
  const libc = openLibrary('libc.so.6')
  const socket = libc.bind<(...args: number[]) => number>('socket', 'int32', ['int32', 'int32', 'int32'])
  const bind = libc.bind<(fd: number, address: Uint8Array, bytes: number) => number>('bind', 'int32', [
    'int32',
    'pointer',
    'uint32',
  ])
  const receive = libc.bind<(fd: number, into: Uint8Array, bytes: number, flags: number) => number>('recv', 'int64', [
    'int32',
    'pointer',
    'uint64',
    'int32',
  ])
  const fd = socket(1, 2, 0)
  const address = Buffer.concat([Uint8Array.of(1, 0), Buffer.from(path)])
  expect(bind(fd, address, address.length)).toBe(0)
  const notifier = openNotifier({ NOTIFY_SOCKET: path, WATCHDOG_USEC: '30000000' })
  expect(notifier.watchdogMs).toBe(30_000)
  for (const state of ['READY=1', 'WATCHDOG=1'] as const) {
    notifier.send(state)
    const into = new Uint8Array(64)
    const DONT_WAIT = 0x40
    const length = receive(fd, into, into.length, DONT_WAIT)
    expect(Buffer.from(into.subarray(0, length)).toString()).toBe(state)
  }
  expect(openNotifier({}).watchdogMs).toBeNull()
})
