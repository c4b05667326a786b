/** A worker's socket for offering states to other members; its node's server proxies to it. */
import { createHash } from 'node:crypto'
import { readdirSync, rmSync, statSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Path on a node's server, followed by the worker's id and the state's key. For members only. */
export const STATES_PATH = '/cluster/states'

/** Short for any node name: systems allow about a hundred characters. */
export function stateSocketOf(worker: string): string {
  const name = `skein-${createHash('sha256').update(worker).digest('hex').slice(0, 24)}`
  return process.platform === 'win32' ? `\\\\.\\pipe\\${name}` : join(tmpdir(), `${name}.sock`)
}

const SOCKET = /^skein-[0-9a-f]{24}\.sock$/
/** A socket exists a moment before somebody listens. */
const YOUNG_MS = 60_000

/** Deletes the sockets of killed workers, which nobody answers. */
export async function dropStaleSockets(folder = tmpdir()): Promise<void> {
  const names = readdirSync(folder).filter((name) => SOCKET.test(name))
  await Promise.all(
    names.map(async (name) => {
      const path = join(folder, name)
      const stat = statSync(path, { throwIfNoEntry: false })
      if (stat === undefined || Date.now() - stat.mtimeMs < YOUNG_MS) return
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
