/** A gateway that hangs ends itself and reports where; systemd is told that it lives. */
// @module-tag night
import { spawn } from 'node:child_process'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, test } from 'vitest'
import { openLibrary } from '../../src/backend/ffi.ts'
import { openNotifier } from '../../src/host/watchdog.ts'

const WATCHDOG = pathToFileURL(join(import.meta.dirname, '../../dist/host/watchdog.js')).href

function run(code: string): Promise<{ signal: string | null; stderr: string; code: number | null }> {
  const file = join(mkdtempSync(join(tmpdir(), 'skein-hang-')), 'hang.mjs')
  writeFileSync(file, `import { watchEventLoop } from '${WATCHDOG}'\n${code}`)
  const child = spawn(process.execPath, [file], { stdio: ['ignore', 'ignore', 'pipe'] })
  let stderr = ''
  child.stderr.on('data', (bytes) => {
    stderr += bytes
  })
  return new Promise((resolve) => {
    child.on('close', (code, signal) => resolve({ code, signal, stderr }))
  })
}

test.each([
  ['a loop', 'function spin() { for (;;) Math.sqrt(2) }\nsetTimeout(() => { spin(); spin() }, 500)'],
  ['a pattern', "function spin() { /(a+)+$/.test('a'.repeat(50) + 'b') }\nsetTimeout(spin, 500)"],
])('a hang in %s ends the process, with the location of the hang', async (_, code) => {
  const { signal, stderr } = await run(`watchEventLoop(2000)\n${code}`)
  expect(signal).toBe('SIGKILL')
  expect(stderr).toContain('the event loop has stood still for 2 s')
  expect(stderr).toContain('hang.mjs:')
})

test('a busy process whose loop turns is left alone, and the watchdog keeps no process alive', async () => {
  const busy = `for (let i = 0; i < 40; i++) {
    const end = Date.now() + 100
    while (Date.now() < end);
    await new Promise(setImmediate)
  }`
  expect(await run(`watchEventLoop(2000)\n${busy}`)).toMatchObject({ code: 0, stderr: '' })
})

test.skipIf(process.platform !== 'linux')('systemd hears what it waits for', () => {
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
