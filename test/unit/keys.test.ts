import { createHash } from 'node:crypto'
import {
  chownSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { expect, test, vi } from 'vitest'
import { createAuth, resolveAuth } from '../../src/gateway/access/auth.ts'
import {
  addKey,
  changeKey,
  formatKeyList,
  type KeyRecord,
  NO_LIMITS,
  parseKeyList,
  revokeKey,
  rotateKey,
} from '../../src/gateway/access/keys.ts'
import { changeKeys, KeyRing, readKeys } from '../../src/gateway/access/keys-file.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const folder = temporaryFolder()
let numFiles = 0
const newFile = () => join(folder, `own-${numFiles++}`, 'keys.json')
const plain = (name: string) => ({ name, role: 'user', expiresAt: null, limits: NO_LIMITS }) as const
const sha256 = (secret: string) => createHash('sha256').update(secret).digest()

test('a secret has 256 random bits, and only its hash is stored', async () => {
  const path = newFile()
  const { secret, key } = await changeKeys(path, (keys) => addKey(keys, plain('goose'), 5))
  expect(secret).toMatch(/^sk-skein-[\w-]{43}$/)
  expect(key.id).toMatch(/^key-[0-9a-f]{24}$/)
  const text = readFileSync(path, 'utf8')
  expect(text).not.toContain(secret.slice('sk-skein-'.length))
  expect(text).toContain(sha256(secret).toString('hex'))
  expect(statSync(path).mode & 0o777).toBe(0o600)
  expect(readKeys(path)).toEqual([key])
  expect(readdirSync(join(path, '..'))).toEqual(['keys.json'])
})

test('names are unique and use a safe alphabet', () => {
  const { keys } = addKey([], plain('goose'), 0)
  expect(() => addKey(keys, plain('goose'), 0)).toThrow('exists')
  for (const name of ['', 'a b', '../x', 'x'.repeat(65), 'gänse']) {
    expect(() => addKey(keys, plain(name), 0), name).toThrow('name: expected 1 to 64 of A-Za-z0-9._-')
  }
  expect(() => revokeKey(keys, 'duck')).toThrow('no key of that name')
  expect(revokeKey(keys, 'goose')).toEqual([])
})

test('limits are counts, or nothing', () => {
  for (const wrong of [0, -1, 1.5, Number.NaN]) {
    const limits = { ...NO_LIMITS, rows: wrong }
    expect(() => addKey([], { ...plain('goose'), limits }, 0), String(wrong)).toThrow('rows')
  }
})

test('a rotated key keeps its tenant; the old secret works until its grace period ends', () => {
  const first = addKey([], plain('goose'), 0)
  const now = Date.now()
  const second = rotateKey(first.keys, 'goose', 60_000, now)
  expect(second.secret).not.toBe(first.secret)
  expect(second.key.id).toBe(first.key.id)
  expect(second.key.secrets.map(({ until }) => until)).toEqual([null, now + 60_000])
  // A rotation without a grace period ends an earlier one.
  expect(rotateKey(second.keys, 'goose', 0, now).key.secrets).toHaveLength(1)
  // A later rotation never extends an earlier grace period.
  const third = rotateKey(second.keys, 'goose', 3_600_000, now + 1)
  expect(third.key.secrets.map(({ until }) => until)).toEqual([null, now + 3_600_001, now + 60_000])
})

test('an expired key gets no new secret, which would be refused, too; with a later end its old one works again', () => {
  const { keys, key, secret } = addKey([], { ...plain('goose'), expiresAt: 10 }, 0)
  expect(() => rotateKey(keys, 'goose', 0, 10)).toThrow('skein keys change goose --expires')
  const changed = changeKey(keys, 'goose', { expiresAt: 30, limits: { rows: 2 } })
  expect(changed.key).toEqual({ ...key, expiresAt: 30, limits: { ...NO_LIMITS, rows: 2 } })
  expect(rotateKey(changed.keys, 'goose', 5, 20).key.secrets[1]!.sha256).toBe(sha256(secret).toString('hex'))
  expect(() => changeKey(keys, 'goose', { limits: { rows: 0 } })).toThrow('rows')
})

test.each([
  ['{', 'JSON'],
  ['[]', 'object'],
  ['{"version":2,"keys":[]}', 'version'],
  ['{"version":1,"keys":[{"name":"x"}]}', '/keys/0'],
])('an invalid list of keys is refused with the position: %s', (text, message) => {
  expect(() => parseKeyList(text)).toThrow(message)
})

test('two processes that change the list at once both succeed', async () => {
  const path = newFile()
  const names = ['a', 'b', 'c', 'd', 'e', 'f']
  await Promise.all(names.map((name) => changeKeys(path, (keys) => addKey(keys, plain(name), 0))))
  expect(
    readKeys(path)
      .map(({ name }) => name)
      .sort(),
  ).toEqual(names)
})

test('a failed change leaves the file as it was, and no lock', async () => {
  const path = newFile()
  await changeKeys(path, (keys) => addKey(keys, plain('goose'), 0))
  const before = readFileSync(path, 'utf8')
  const again = changeKeys(path, (keys) => addKey(keys, plain('goose'), 0))
  await expect(again).rejects.toMatchObject({ code: 'conflict' })
  expect(readFileSync(path, 'utf8')).toBe(before)
  expect(readdirSync(join(path, '..'))).toEqual(['keys.json'])
})

test('a server follows its file, and an invalid one changes nothing', async () => {
  const path = newFile()
  const { secret } = await changeKeys(path, (keys) => addKey(keys, plain('goose'), 0))
  const problems: string[] = []
  const ring = new KeyRing(path, ({ message }) => problems.push(message))
  const auth = createAuth([], ring)
  expect(auth.checkPassword(secret)).toMatchObject({ name: 'goose', role: 'user' })

  writeFileSync(path, '{"version":1,"keys":[{}]}')
  ring.refresh()
  ring.refresh()
  expect(problems).toHaveLength(1)
  expect(problems[0]).toContain(path)
  expect(auth.checkPassword(secret).name).toBe('goose')
  rmSync(path)
  ring.refresh()
  expect(problems).toHaveLength(2)
  expect(auth.checkPassword(secret).name).toBe('goose')

  const { secret: other } = await changeKeys(path, (keys) => addKey(keys, plain('duck'), 0))
  ring.refresh()
  expect(auth.checkPassword(other).name).toBe('duck')
  expect(() => auth.checkPassword(secret)).toThrow('not valid on this server')
})

test('an inaccessible file does not end its server', async () => {
  const path = newFile()
  const { secret } = await changeKeys(path, (keys) => addKey(keys, plain('goose'), 0))
  const problems: string[] = []
  const ring = new KeyRing(path, ({ message }) => problems.push(message))
  const aside = `${path}.aside`
  renameSync(path, aside)
  // A link to itself fails like a folder without permission, also for root.
  symlinkSync(path, path)
  ring.refresh()
  ring.refresh()
  expect(problems).toEqual([expect.stringContaining('cannot read the keys')])
  expect(createAuth([], ring).checkPassword(secret).name).toBe('goose')
  expect(() => new KeyRing(path)).toThrow('cannot read the keys')
  renameSync(aside, path)
  ring.refresh()
  expect(problems).toHaveLength(1)
})

test('changes of the file are noticed within seconds', async () => {
  const path = newFile()
  await changeKeys(path, (keys) => addKey(keys, plain('goose'), 0))
  const ring = new KeyRing(path)
  ring.follow()
  await changeKeys(path, (keys) => addKey(keys, plain('duck'), 0))
  await vi.waitFor(() => expect(ring.keys).toHaveLength(2), { timeout: 5000 })
  ring.close()
})

test('a server does not start with an invalid file, and does not open when its last key is revoked', async () => {
  const path = newFile()
  await changeKeys(path, (keys) => addKey(keys, plain('goose'), 0))
  const ring = new KeyRing(path)
  const auth = createAuth([], ring)
  await changeKeys(path, (keys) => ({ keys: revokeKey(keys, 'goose') }))
  ring.refresh()
  expect(ring.keys).toEqual([])
  expect(() => auth.check(undefined)).toThrow('no API key')
  writeFileSync(path, 'x')
  expect(() => new KeyRing(path)).toThrow('not a file of keys')
})

test('an open server closes with its first key', async () => {
  const path = newFile()
  const ring = new KeyRing(path)
  const auth = createAuth([], ring)
  expect(auth.check(undefined)).toMatchObject({ tenant: 'public', role: 'admin' })
  await changeKeys(path, (keys) => addKey(keys, plain('goose'), 0))
  ring.refresh()
  expect(() => auth.check(undefined)).toThrow('no API key')
})

test('expired keys and replaced secrets are told apart from unknown ones', () => {
  const past = Date.now() - 1
  const first = addKey([], { ...plain('old'), expiresAt: past }, 0)
  const fresh = addKey(first.keys, plain('goose'), 0)
  const rotated = rotateKey(fresh.keys, 'goose', 1, past - 5)
  const within = rotateKey(addKey([], plain('gander'), 0).keys, 'gander', 60_000, Date.now())
  const ringOf = (keys: readonly KeyRecord[]) => {
    const path = newFile()
    return changeKeys(path, () => ({ keys })).then(() => new KeyRing(path))
  }
  return Promise.all([ringOf(rotated.keys), ringOf(within.keys)]).then(([ring, other]) => {
    const auth = createAuth([], ring)
    expect(() => auth.checkPassword(first.secret)).toThrow('expired')
    // Its grace period ended before it was written, so it counts as unknown.
    expect(auth.checkPassword(rotated.secret)).toMatchObject({ tenant: fresh.key.id })
    expect(createAuth([], other).checkPassword(within.secret).name).toBe('gander')
  })
})

test('named keys count as protection of a public address', () => {
  expect(resolveAuth({ host: '0.0.0.0', numNamed: 2 })).toEqual({
    keys: [],
    generatedKey: null,
    message: 'requests need one of 2 keys',
  })
  expect(() => resolveAuth({ host: '0.0.0.0', numNamed: 2, noAuth: true })).toThrow('named')
})

test('a written list is read back unchanged', () => {
  const { keys } = addKey([], { ...plain('goose'), limits: { ...NO_LIMITS, share: 0.5 } }, 7)
  expect(parseKeyList(formatKeyList(keys))).toEqual(keys)
})

test.skipIf(process.getuid?.() !== 0)(
  'a file that root writes belongs to the owner of the file or its folder',
  async () => {
    const path = newFile()
    mkdirSync(join(path, '..'))
    chownSync(join(path, '..'), 1234, 1235)
    const owner = () => {
      const { uid, gid, mode } = statSync(path)
      return [uid, gid, mode & 0o777]
    }
    await changeKeys(path, (keys) => addKey(keys, plain('goose'), 5))
    expect(owner()).toEqual([1234, 1235, 0o600])
    chownSync(path, 2345, 2346)
    await changeKeys(path, (keys) => ({ keys: revokeKey(keys, 'goose') }))
    expect(owner()).toEqual([2345, 2346, 0o600])
  },
)
