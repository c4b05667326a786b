/**
 * A real S3 server: OpenStack Swift with its s3api from Debian (python3-swift), in a temporary folder, with an empty
 * bucket. Its signatures, errors and lists follow S3. s3-double.ts is for faulty storage.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { AwsClient } from 'aws4fetch'

/** Debian's Python, whatever else is on the path. */
const PYTHON = '/usr/bin/python3'

/** Why there is none, for the names of skipped tests. */
export const NO_SWIFT: string | null =
  spawnSync(PYTHON, ['-c', 'import swift']).status === 0
    ? null
    : "no Swift is installed (Debian: python3-swift), so no server of S3 but the tests' double"

if (NO_SWIFT !== null) process.stderr.write(`${NO_SWIFT}\n`)

export interface Swift {
  /** The environment for a process that uses its bucket `bucket`. */
  readonly variables: Readonly<Record<string, string>>
  close(): void
}

export async function startSwift(host = '127.0.0.1'): Promise<Swift> {
  const folder = mkdtempSync(join(tmpdir(), 'skein-swift-'))
  const [accessKeyId, secretAccessKey] = ['skein:tests', 'a/secret+key'] as const
  const script = join(import.meta.dirname, 'swift-s3.py')
  const child = spawn(PYTHON, [script, folder, host, accessKeyId, secretAccessKey], { stdio: ['pipe', 'pipe', 'pipe'] })
  let said = ''
  child.stderr.on('data', (part) => {
    said += part
  })
  const ended = once(child, 'exit').then(([code]) => {
    throw new Error(`Swift ended with ${code}: ${said}`)
  })
  const [line] = await Promise.race([once(child.stdout, 'data'), ended])
  ended.catch(() => {})
  const url = `http://${host}:${Number(line)}`
  const client = new AwsClient({ accessKeyId, secretAccessKey, service: 's3', region: 'us-east-1' })
  const made = await client.fetch(`${url}/bucket`, { method: 'PUT' })
  if (!made.ok) throw new Error(`no bucket: ${made.status} ${await made.text()}`)
  return {
    variables: { AWS_ACCESS_KEY_ID: accessKeyId, AWS_SECRET_ACCESS_KEY: secretAccessKey, AWS_ENDPOINT_URL: url },
    close() {
      child.kill('SIGKILL')
      rmSync(folder, { recursive: true, force: true })
    },
  }
}
