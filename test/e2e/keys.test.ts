import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { type RunningServer, serve, skein } from '../helpers/cli.ts'
import { readEvents } from '../helpers/event-reader.ts'
import { postJson } from '../helpers/post-json.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-keys-'))
const file = join(folder, 'keys.json')
let server: RunningServer | null = null

const keys = (...args: string[]) => skein(['keys', ...args, '--keys', file])
const status = async (key: string, path = '/v1/models', init: RequestInit = {}) => {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
  const reply = await fetch(`${server!.url}${path}`, { ...init, headers })
  await reply.arrayBuffer()
  return reply.status
}
/** Waits until a running server has noticed a change. */
const until = (key: string, expected: number) =>
  vi.waitFor(async () => expect(await status(key)).toBe(expected), { timeout: 10_000 })

afterAll(async () => {
  await server?.stop()
  rmSync(folder, { recursive: true, force: true })
})

describe('skein keys with a running server', () => {
  let first = ''

  beforeAll(async () => {
    const { stdout, code } = await keys('add', 'alice', '--rpm', '600', '--expires', '30d')
    expect(code).toBe(0)
    // Only the secret, so that a script can read it.
    expect(stdout).toMatch(/^sk-skein-[\w-]{43}\n$/)
    first = stdout.trim()
    expect(statSync(file).mode & 0o777).toBe(0o600)
    server = await serve(['--no-store', '--keys', file])
    expect(server.output.join('\n')).toContain('requests need a key')
  })

  test('the key opens what a user may use', async () => {
    expect(await status('sk-skein-wrong')).toBe(401)
    expect(await status(first)).toBe(200)
    expect(await status(first, '/metrics')).toBe(403)
    const body = JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], max_tokens: 2 })
    expect(await status(first, '/v1/chat/completions', { method: 'POST', body })).toBe(200)
  })

  test('watching with a revoked key ends', { tags: 'night' }, async () => {
    const added = await keys('add', 'watcher', '--role', 'operator')
    expect(added).toMatchObject({ code: 0 })
    const watcher = added.stdout.trim()
    await until(watcher, 200)
    const headers = { authorization: `Bearer ${watcher}` }
    const reply = await fetch(`${server!.url}/api/events`, { headers })
    const seen: string[] = []
    const watching = (async () => {
      for await (const { type } of readEvents(reply)) seen.push(type)
      return 'ended'
    })()
    await vi.waitFor(() => expect(seen).toContain('sample'), { timeout: 10_000 })
    expect(await keys('revoke', 'watcher')).toMatchObject({ code: 0 })
    await until(watcher, 401)
    await expect(watching).resolves.toBe('ended')
  })

  test('keys are added, rotated and revoked without a restart', async () => {
    const operator = (await keys('add', 'ops', '--role', 'operator')).stdout.trim()
    await until(operator, 200)
    expect(await status(operator, '/metrics')).toBe(200)

    const second = (await keys('rotate', 'alice', '--grace', '1h')).stdout.trim()
    await until(second, 200)
    expect(await status(first)).toBe(200)
    const third = (await keys('rotate', 'alice')).stdout.trim()
    await until(third, 200)
    expect(await status(first)).toBe(401)
    expect(await status(second)).toBe(401)

    expect((await keys('revoke', 'alice')).code).toBe(0)
    await until(third, 401)
    const { stdout } = await keys('list')
    expect(stdout).toMatch(/ops +operator/)
    expect(stdout).not.toContain('alice')
  })

  test('an invalid file changes nothing', { tags: 'night' }, async () => {
    const before = readFileSync(file, 'utf8')
    const key = (await keys('add', 'bob')).stdout.trim()
    await until(key, 200)
    writeFileSync(file, before.slice(0, 40))
    await vi.waitFor(() => expect(server!.output.join('\n')).toContain('keys stay as they were'), { timeout: 10_000 })
    expect(await status(key)).toBe(200)
  })
})

test('adding says what the first key does, and which routes no key opens yet', async () => {
  const own = join(folder, 'noted.json')
  const said = async (...args: string[]) => (await skein(['keys', 'add', ...args, '--keys', own])).stderr
  const first = await said('a')
  expect(first).toContain('require a key from now on')
  expect(first).toContain('no key is an operator yet')
  const second = await said('b', '--role', 'operator')
  expect(second).not.toContain('first key')
  expect(second).toContain('no key is an admin yet')
  expect(await said('c', '--role', 'admin')).not.toContain('note:')
})

test('a limit on stored states is listed as it was entered', async () => {
  const own = join(folder, 'stored.json')
  await skein(['keys', 'add', 'alice', '--stored-mb', '512', '--keys', own])
  expect((await skein(['keys', 'list', '--keys', own])).stdout).toContain('512 MiB stored')
})

test.each([
  [['add', 'a b'], 2, 'name'],
  [['add', 'x', '--role', 'king'], 2, '--role takes one of'],
  [['add', 'x', '--rpm', '0'], 2, '--rpm takes'],
  [['add', 'x', '--expires', 'soon'], 2, '--expires takes a time such as'],
  [['revoke', 'nobody'], 1, 'no key of that name'],
] as const)('skein keys %j is refused', async (words, wanted, message) => {
  const own = join(folder, 'none.json')
  const { code, stderr } = await skein(['keys', ...words, '--keys', own])
  expect(code).toBe(wanted)
  expect(stderr).toContain(message)
})

describe('skein config', () => {
  const config = (content: unknown) => {
    const path = join(folder, 'skein.config.json')
    writeFileSync(path, JSON.stringify(content), { mode: 0o600 })
    return path
  }

  test('check shows what would run and where it came from', async () => {
    const aliases = ['gander', 'duck']
    const models = [{ file: 'demo', name: 'goose', replicas: 2, aliases }]
    const path = config({ port: 8123, apiKey: ['sesame'], models, limits: { n: 2 } })
    process.env.SKEIN_PROT = '1'
    const { code, stdout, stderr } = await skein(['config', 'check', path]).finally(() => {
      delete process.env.SKEIN_PROT
    })
    expect(code).toBe(0)
    expect(stdout).toMatch(/models\[0\]\.replicas +2 +file/)
    expect(stdout).toMatch(/models\[0\]\.aliases +gander, duck +file/)
    expect(stdout).toMatch(/limits\.n +2 +file/)
    expect(stderr).toContain('SKEIN_PROT is no setting')
    expect(stdout).toMatch(/model +goose: .*demo\.pth, 2 workers/)
    expect(stdout).toMatch(/port +8123 +file/)
    expect(stdout).toMatch(/host +127\.0\.0\.1 +default/)
    expect(stdout).not.toContain('sesame')
  })

  test('skein keys uses the file of the server in the configuration', async () => {
    const path = config({ keys: 'own/named.json' })
    const before = process.env.SKEIN_CONFIG
    process.env.SKEIN_CONFIG = path
    try {
      expect((await skein(['keys', 'add', 'x'])).stderr).toContain(join(folder, 'own/named.json'))
    } finally {
      if (before === undefined) delete process.env.SKEIN_CONFIG
      else process.env.SKEIN_CONFIG = before
    }
  })

  test('check fails and names the wrong field', { tags: 'night' }, async () => {
    const path = config({ models: [{ file: 'demo' }, { file: 'nowhere.pth' }] })
    const { code, stderr } = await skein(['config', 'check', path])
    expect(code).toBe(1)
    expect(stderr).toContain('skein.config.json: models[1].file: ')
    const models = [
      { file: 'demo', name: 'a', aliases: ['b'] },
      { file: 'demo', name: 'b' },
    ]
    const clash = await skein(['config', 'check', config({ models })])
    expect(clash).toMatchObject({ code: 1, stderr: expect.stringContaining('b is another name') })
    const wrong = await skein(['config', 'check', config({ prot: 1 })])
    expect([wrong.code, wrong.stderr]).toEqual([2, expect.stringContaining('did you mean port?')])
  })

  test('serve runs what the file says and names the file', { tags: 'night' }, async () => {
    const models = [
      { file: 'demo', name: 'goose', aliases: ['gander'], slots: 4 },
      { file: 'demo', name: 'duck', device: 'reference' },
    ]
    const path = config({ models, noStore: true, limits: { n: 2 } })
    const running = await serve(['--config', path])
    try {
      expect(running.output.join('\n')).toContain(`config   ${path}`)
      const names = async () => {
        const reply = await fetch(`${running.url}/v1/models`)
        return (await reply.json()) as { data: { id: string }[] }
      }
      const { data } = await names()
      expect(data.map(({ id }) => id).sort()).toEqual(['duck', 'gander', 'goose'])
      const ask = (model: string, n: number) =>
        postJson(`${running.url}/v1/completions`, { model, prompt: 'x', n, max_tokens: 1 }).then(({ status }) => status)
      expect(await ask('gander', 2)).toBe(200)
      expect(await ask('duck', 3)).toBe(400)
    } finally {
      await running.stop()
    }
  })
})
