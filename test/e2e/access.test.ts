/** Who may use a server that has just started: each address with each way to give a key, as processes. */
import { readdirSync, readFileSync } from 'node:fs'
import { networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, test } from 'vitest'
import { type RunningServer, serve, skein } from '../helpers/cli.ts'

const FLAGS = ['--without-model', '--no-store']
let server: RunningServer | null = null
afterEach(async () => {
  await server?.stop()
  server = null
})

/** Another address of this machine, as another machine would use it. */
const outside = Object.values(networkInterfaces())
  .flat()
  .find((each) => each?.family === 'IPv4' && !each.internal)?.address

async function statusOf(host: string, key?: string): Promise<number | string> {
  const { port } = new URL(server!.url)
  const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` }
  const reply = await fetch(`http://${host}:${port}/v1/models`, { headers }).catch(() => null)
  return reply?.status ?? 'unreachable'
}

describe('at the start', () => {
  test('without flags: this machine only, and no key', async () => {
    server = await serve(FLAGS)
    expect(await statusOf('127.0.0.1')).toBe(200)
    if (outside !== undefined) expect(await statusOf(outside)).toBe('unreachable')
  })

  test('on all addresses without a key, one is generated, shown once, and required', async () => {
    server = await serve([...FLAGS, '--host', '0.0.0.0'])
    const made = server.output.join('\n').match(/sk-[\w-]{32}/g)
    expect(made).toHaveLength(1)
    for (const host of ['127.0.0.1', outside ?? '127.0.0.1']) {
      expect(await statusOf(host)).toBe(401)
      expect(await statusOf(host, made![0])).toBe(200)
    }
  })

  test('a given key is required everywhere, and not shown', { tags: 'night' }, async () => {
    for (const host of ['127.0.0.1', '0.0.0.0']) {
      server = await serve([...FLAGS, '--host', host, '--api-key', 'open-sesame'])
      expect(await statusOf('127.0.0.1')).toBe(401)
      expect(await statusOf('127.0.0.1', 'open-sesame')).toBe(200)
      expect(server.output.join('\n')).not.toContain('open-sesame')
      await server.stop()
    }
  })

  test('the server is open to all only by an explicit flag, with a warning', { tags: 'night' }, async () => {
    server = await serve([...FLAGS, '--host', '0.0.0.0', '--no-auth'])
    expect(await statusOf(outside ?? '127.0.0.1')).toBe(200)
    expect(server.output.join('\n')).toContain('OPEN to everyone')
    const both = await skein(['serve', ...FLAGS, '--no-auth', '--api-key', 'x'])
    expect([both.code, both.stderr]).toEqual([2, expect.stringContaining('exclude each other')])
  })
})

test('shipped files contain no secrets', () => {
  const root = join(import.meta.dirname, '../..')
  const files = ['dist', 'deploy'].flatMap((folder) =>
    (readdirSync(join(root, folder), { recursive: true }) as string[]).map((path) => join(root, folder, path)),
  )
  const texts = files.filter((path) => /\.(js|html|css|service|json|Dockerfile)$|Dockerfile/.test(path))
  expect(texts.length).toBeGreaterThan(100)
  for (const path of texts) {
    const text = readFileSync(path, 'utf8')
    expect(
      text.match(/sk-(skein-)?[\w-]{32,}|-----BEGIN [A-Z ]*PRIVATE KEY|ai00_is_good|permisionkey/g),
      path,
    ).toBeNull()
  }
})
