import { execFileSync } from 'node:child_process'
import { existsSync, utimesSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { dropStaleSockets } from '../../src/cluster/state-socket.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

test.skipIf(process.platform === 'win32')(
  'sockets that nobody listens on go; the others, the young ones and other files stay',
  async () => {
    const folder = temporaryFolder()
    const socket = (letter: string) => join(folder, `skein-${letter.repeat(24)}.sock`)
    const listen = (path: string) =>
      new Promise<ReturnType<typeof createServer>>((resolve) => {
        const server = createServer().listen(path, () => resolve(server))
      })
    const lives = await listen(socket('a'))
    onTestFinished(() => void lives.close())
    for (const path of [socket('b'), socket('c')]) {
      const killed = `require('net').createServer().listen('${path}', () => process.kill(process.pid, 9))`
      expect(() => execFileSync(process.execPath, ['-e', killed])).toThrow()
      expect(existsSync(path)).toBe(true)
    }
    const other = join(folder, 'skein-other.sock')
    writeFileSync(other, '')
    const old = Date.now() / 1000 - 3600
    for (const path of [socket('a'), socket('b'), other]) utimesSync(path, old, old)
    await dropStaleSockets(folder)
    const there = [socket('a'), socket('b'), socket('c'), other].map((path) => existsSync(path))
    expect(there).toEqual([true, false, true, true])
  },
)
