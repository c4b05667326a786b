/** Where a worker offers states to other members: a socket on its machine, which its node's server leads to. */
import { createHash } from 'node:crypto'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Of a node's server; behind it the worker's id and the state's key. For members alone. */
export const STATES_PATH = '/cluster/states'

/** Short, whatever a node is called: systems take about a hundred characters. */
export function stateSocketOf(worker: string): string {
  const name = `skein-${createHash('sha256').update(worker).digest('hex').slice(0, 24)}`
  return process.platform === 'win32' ? `\\\\.\\pipe\\${name}` : join(tmpdir(), `${name}.sock`)
}
