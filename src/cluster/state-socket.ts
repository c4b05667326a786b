/** Where a worker offers states to other members: a socket on its machine, which its node's server leads to. */
import { createHash } from 'node:crypto'
import { readdirSync, rmSync, statSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Of a node's server; behind it the worker's id and the state's key. For members alone. */
export const STATES_PATH = '/cluster/states'

/** Short, whatever a node is called: systems take about a hundred characters. */
export function stateSocketOf(worker: string): string {
  const name = `skein-${createHash('sha256').update(worker).digest('hex').slice(0, 24)}`
  return process.platform === 'win32' ? `\\\\.\\pipe\\${name}` : join(tmpdir(), `${name}.sock`)
}

const SOCKET = /^skein-[0-9a-f]{24}\.sock$/
/** A socket is there a moment before somebody listens. */
const YOUNG_MS = 60_000

/** Those of workers that were killed, which nobody answers. */
export async function dropStaleSockets(folder = tmpdir(), youngMs = YOUNG_MS): Promise<void> {
  const names = readdirSync(folder).filter((name) => SOCKET.test(name))
  await Promise.all(
    names.map(async (name) => {
      const path = join(folder, name)
      const stat = statSync(path, { throwIfNoEntry: false })
      if (stat === undefined || Date.now() - stat.mtimeMs < youngMs) return
      if (await isRefused(path)) rmSync(path, { force: true })
    }),
  )
}

function isRefused(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    const end = (isDead: boolean) => {
      socket.destroy()
      resolve(isDead)
    }
    socket.once('connect', () => end(false))
    socket.once('error', (error: NodeJS.ErrnoException) => end(error.code === 'ECONNREFUSED'))
  })
}
