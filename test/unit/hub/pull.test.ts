import { createHash, randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { headersFor, nextHop, openHub, unreachable } from '../../../src/hub/hub.ts'
import { findModel, listModels, modelsFolder, removeModel } from '../../../src/hub/model-cache.ts'
import { type PullOptions, pullModel, pullVocabulary } from '../../../src/hub/pull.ts'
import { WORLD_VOCABULARY } from '../../../src/tokenizer/find-vocabulary.ts'
import { type FakeHub, startFakeHub } from '../../helpers/fake-hub.ts'
import { temporaryFolder } from '../../helpers/temporary-folder.ts'
import { WORLD_VOCABULARY_PATH } from '../../helpers/vocabulary.ts'

const root = temporaryFolder()
const environment = { XDG_CACHE_HOME: join(root, 'cache') }
const folder = modelsFolder(environment)

const NEWEST = 'rwkv7-g1a-0.4b-20250905-ctx4096.pth'
const MODEL = randomBytes(300_000)
const CONFIG = Buffer.from('{"model_type":"rwkv7"}')
const REPOSITORIES = {
  'BlinkDL/rwkv7-g1': {
    'README.md': { content: Buffer.from('hello'), isLarge: false },
    'rwkv7-g1-0.4b-20250324-ctx4096.pth': { content: randomBytes(10) },
    [NEWEST]: { content: MODEL },
    'rwkv7-g1-2.9b-20250519-ctx4096.pth': { content: randomBytes(10) },
  },
  'fla-hub/tiny': {
    'config.json': { content: CONFIG, isLarge: false },
    'model.safetensors': { content: randomBytes(1000) },
    'modeling.py': { content: Buffer.from('import os'), isLarge: false },
    'rwkv_vocab_v20230424.txt': { content: Buffer.from("1 'a' 1"), isLarge: false },
  },
  'one/gguf': { 'deep/m.Q8_0.gguf': { content: randomBytes(500) } },
  'bad/digest': { 'm.pth': { content: MODEL, digest: 'ab'.repeat(32) } },
  'bad/path': { '../escape.pth': { content: MODEL } },
}
const MODEL_PATH = join(folder, 'BlinkDL--rwkv7-g1', NEWEST)
const CDN_PATH = `/cdn/BlinkDL/rwkv7-g1/${NEWEST}`

let fake: FakeHub
beforeEach(async () => {
  fake = await startFakeHub(REPOSITORIES)
})
afterEach(async () => {
  await fake.close()
  rmSync(join(root, 'cache'), { recursive: true, force: true })
})

const options = (more: Partial<PullOptions> = {}): PullOptions => {
  return { hub: fake.hub, isOffline: false, environment, retryMs: 1, ...more }
}
const partials = () =>
  existsSync(dirname(MODEL_PATH)) ? readdirSync(dirname(MODEL_PATH)).filter((name) => name.endsWith('.partial')) : []
const partialOf = (bytes: Buffer) => {
  const digest = createHash('sha256').update(MODEL).digest('hex').slice(0, 16)
  mkdirSync(dirname(MODEL_PATH), { recursive: true })
  writeFileSync(`${MODEL_PATH}.${digest}.partial`, bytes)
}

describe('a model by its short name', () => {
  test('downloaded through a redirect, with progress, then present', async () => {
    const seen: number[] = []
    const onFile = (name: string) => {
      expect(name).toBe(NEWEST)
      return (done: number, total: number) => {
        expect(total).toBe(MODEL.length)
        seen.push(done)
      }
    }
    const pulled = await pullModel('rwkv7-g1-0.4b', options({ onFile }))
    expect(pulled).toEqual({ path: MODEL_PATH, fetched: [NEWEST] })
    expect(readFileSync(MODEL_PATH)).toEqual(MODEL)
    expect(seen[0]).toBe(0)
    expect(seen.at(-1)).toBe(MODEL.length)
    expect(partials()).toEqual([])
    expect(fake.requests).toEqual([
      'GET /api/models/BlinkDL/rwkv7-g1/tree/main',
      'GET /api/models/BlinkDL/rwkv7-g1/tree/main', // the second page
      `GET /BlinkDL/rwkv7-g1/resolve/main/${NEWEST}`,
      `GET ${CDN_PATH}`,
    ])
    const again = await pullModel('rwkv7-g1-0.4b', options())
    expect(again).toEqual({ path: MODEL_PATH, fetched: [] })
    expect(fake.requests).toHaveLength(6) // the list only
  })

  test('listed although a reused connection ends', async () => {
    const list = '/api/models/BlinkDL/rwkv7-g1/tree/main'
    fake.faults.set(list, [{ kind: 'reset' }])
    expect((await pullModel('rwkv7-g1-0.4b', options())).fetched).toEqual([NEWEST])
    expect(fake.requests.filter((line) => line === `GET ${list}`)).toHaveLength(3)
    // Two failures in a row mean that the hub is not reachable.
    fake.faults.set(list, [{ kind: 'reset' }, { kind: 'reset' }])
    await expect(pullModel('rwkv7-g1-0.4b', options())).rejects.toMatchObject({ code: 'timeout' })
  })

  test('a file of the right size with other content is replaced', async () => {
    mkdirSync(dirname(MODEL_PATH), { recursive: true })
    writeFileSync(MODEL_PATH, randomBytes(MODEL.length))
    expect((await pullModel('rwkv7-g1-0.4b', options())).fetched).toEqual([NEWEST])
    expect(readFileSync(MODEL_PATH)).toEqual(MODEL)
  })
})

test('two downloads at once: both have the file, and nothing is left over', async () => {
  const both = await Promise.all([pullModel('rwkv7-g1-0.4b', options()), pullModel('rwkv7-g1-0.4b', options())])
  expect(both.map(({ path }) => path)).toEqual([MODEL_PATH, MODEL_PATH])
  expect(readFileSync(MODEL_PATH)).toEqual(MODEL)
  expect(partials()).toEqual([])
})

describe('resumed', () => {
  test('from what an earlier run left', async () => {
    partialOf(MODEL.subarray(0, 123_456))
    await pullModel('rwkv7-g1-0.4b', options())
    expect(readFileSync(MODEL_PATH)).toEqual(MODEL)
    expect(fake.requests.at(-1)).toBe(`GET ${CDN_PATH} bytes=123456-`)
  })

  test('within a run, after connections that end early', async () => {
    fake.faults.set(CDN_PATH, [
      { kind: 'cut', bytes: 100_000 },
      { kind: 'status', status: 503 },
      { kind: 'cut', bytes: 50_000 },
    ])
    await pullModel('rwkv7-g1-0.4b', options())
    expect(readFileSync(MODEL_PATH)).toEqual(MODEL)
    const ranges = fake.requests.filter((r) => r.startsWith('GET /cdn')).map((r) => r.split(' ')[2])
    expect(ranges).toHaveLength(4)
    expect(ranges[0]).toBeUndefined()
    expect(ranges[1]).toMatch(/^bytes=\d+-$/)
    expect(ranges[1]).toBe(ranges[2])
  })

  test('from the beginning if the server ignores the range', async () => {
    partialOf(randomBytes(1000))
    fake.faults.set(CDN_PATH, [{ kind: 'no range' }])
    await pullModel('rwkv7-g1-0.4b', options())
    expect(readFileSync(MODEL_PATH)).toEqual(MODEL)
  })

  test.each([
    ['complete', MODEL, 0],
    ['too long', Buffer.concat([MODEL, Buffer.alloc(1)]), 1],
  ])('a partial file that is %s', async (_what, bytes, numFetches) => {
    partialOf(bytes)
    await pullModel('rwkv7-g1-0.4b', options())
    expect(readFileSync(MODEL_PATH)).toEqual(MODEL)
    expect(fake.requests.filter((r) => r.startsWith('GET /cdn'))).toHaveLength(numFetches)
  })

  test('gives up after five attempts and keeps the partial file', async () => {
    const cut = { kind: 'cut', bytes: 1000 } as const
    fake.faults.set(CDN_PATH, [cut, cut, cut, cut, cut])
    await expect(pullModel('rwkv7-g1-0.4b', options())).rejects.toMatchObject({ code: 'timeout' })
    expect(existsSync(MODEL_PATH)).toBe(false)
    expect(partials()).toHaveLength(1)
    expect(listModels(folder)).toMatchObject([{ isPartial: true }])
    expect(findModel(folder, 'rwkv7-g1-0.4b')).toBeUndefined()
  })
})

describe('a file that fails its check never gets its name', () => {
  test('wrong bytes are discarded', async () => {
    partialOf(randomBytes(1000)) // the rest is right
    await expect(pullModel('rwkv7-g1-0.4b', options())).rejects.toMatchObject({
      code: 'corrupt_weights',
      message: expect.stringContaining('it was thrown away'),
    })
    expect(existsSync(MODEL_PATH)).toBe(false)
    expect(partials()).toEqual([])
    await expect(pullModel('bad/digest', options())).rejects.toMatchObject({ code: 'corrupt_weights' })
  })

  test('more bytes than announced', async () => {
    fake.faults.set(CDN_PATH, [{ kind: 'body', body: Buffer.alloc(MODEL.length + 1) }])
    await expect(pullModel('rwkv7-g1-0.4b', options())).rejects.toThrow('sent more than 300000')
  })

  test('a path that leads out of the cache', async () => {
    await expect(pullModel('bad/path', options())).rejects.toMatchObject({ code: 'invalid_request' })
    expect(existsSync(join(root, 'escape.pth'))).toBe(false)
    expect(existsSync(join(folder, 'escape.pth'))).toBe(false)
  })

  test('a link in place of the partial file', async () => {
    const victim = join(root, 'victim')
    writeFileSync(victim, 'precious')
    const digest = createHash('sha256').update(MODEL).digest('hex').slice(0, 16)
    mkdirSync(dirname(MODEL_PATH), { recursive: true })
    symlinkSync(victim, `${MODEL_PATH}.${digest}.partial`)
    await expect(pullModel('rwkv7-g1-0.4b', options())).rejects.toThrow()
    expect(readFileSync(victim, 'utf8')).toBe('precious')
  })
})

test('an unwritable cache folder is reported, with how to choose another', async () => {
  const file = join(root, 'file')
  writeFileSync(file, '')
  const elsewhere = options({ environment: { XDG_CACHE_HOME: file } })
  await expect(pullVocabulary(elsewhere)).rejects.toThrow(/^cannot write .*ENOTDIR.* XDG_CACHE_HOME$/)
})

test('a hub that cannot be reached: how Node is told to take the proxy', () => {
  const messageOf = (environment: Record<string, string>) =>
    unreachable(new URL('https://hub.example/a'), new Error('no route'), environment).message
  expect(messageOf({})).toBe(
    'could not read from hub.example: no route; check the network, or name a mirror with HF_ENDPOINT',
  )
  expect(messageOf({ HTTPS_PROXY: 'http://p:1' })).toMatch(/HF_ENDPOINT; for your proxy set NODE_USE_ENV_PROXY=1, too/)
  expect(messageOf({ https_proxy: 'http://p:1' })).toContain('NODE_USE_ENV_PROXY=1')
  expect(messageOf({ https_proxy: 'http://p:1', NODE_USE_ENV_PROXY: '1' })).not.toContain('proxy')
})

test('a directory: its weights, config and vocabulary, but no code', async () => {
  const { path, fetched } = await pullModel('fla-hub/tiny', options())
  expect(path).toBe(join(folder, 'fla-hub--tiny'))
  expect([...fetched].sort()).toEqual(['config.json', 'model.safetensors', 'rwkv_vocab_v20230424.txt'])
  expect(readdirSync(path).sort()).toEqual([...fetched].sort())
  expect(findModel(folder, 'fla-hub/tiny')?.path).toBe(path)
})

test('the only checkpoint of a repository; a file by its name', async () => {
  const whole = await pullModel('one/gguf', options())
  expect(whole.path).toBe(join(folder, 'one--gguf', 'deep', 'm.Q8_0.gguf'))
  const named = await pullModel('one/gguf:deep/m.Q8_0.gguf', options())
  expect(named).toEqual({ path: whole.path, fetched: [] })
})

describe('errors name what was requested and what exists', () => {
  test.each([
    ['rwkv7-g1-13.3b', 'not_found', 'BlinkDL/rwkv7-g1 has no model "rwkv7-g1-13.3b"; it has rwkv7'],
    ['BlinkDL/rwkv7-g1', 'not_found', 'is not one model; name its file as BlinkDL/rwkv7-g1:FILE'],
    ['one/gguf:other.gguf', 'not_found', 'it has deep/m.Q8_0.gguf'],
    ['no/such', 'unauthorized', 'no such repository, or a private one; set HF_TOKEN'],
    ['nonsense', 'invalid_request', 'is no model name'],
  ])('%s', async (name, code, message) => {
    await expect(pullModel(name, options())).rejects.toMatchObject({ code, message: expect.stringContaining(message) })
  })

  test('an invalid listing; an unreachable hub', async () => {
    fake.faults.set('/api/models/one/gguf/tree/main', [{ kind: 'body', body: '<html>' }])
    await expect(pullModel('one/gguf', options())).rejects.toThrow('that is not a list of files')
    const hub = { ...fake.hub, endpoint: new URL('http://127.0.0.1:1') }
    await expect(pullModel('one/gguf', options({ hub }))).rejects.toThrow('or name a mirror')
  })
})

describe('offline', () => {
  test('answers from the cache and makes no request', async () => {
    const isOffline = true
    await expect(pullModel('rwkv7-g1-0.4b', options({ isOffline }))).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('downloads are off'),
    })
    await expect(pullVocabulary(options({ isOffline }))).rejects.toMatchObject({ code: 'not_found' })
    expect(fake.requests).toEqual([])
    await pullModel('rwkv7-g1-0.4b', options())
    const count = fake.requests.length
    const pulled = await pullModel('rwkv7-g1-0.4b', options({ isOffline }))
    expect(pulled).toEqual({ path: MODEL_PATH, fetched: [] })
    expect(fake.requests).toHaveLength(count)
  })

  test('says where the World vocabulary is', async () => {
    const path = join(root, 'cache', 'skein', WORLD_VOCABULARY.fileName)
    mkdirSync(dirname(path), { recursive: true })
    writeFileSync(path, '')
    expect(await pullVocabulary(options({ isOffline: true }))).toEqual({ path, fetched: [] })
    expect(fake.requests).toEqual([])
  })
})

describe('the World vocabulary', () => {
  test('with a wrong digest is discarded', async () => {
    const content = Buffer.alloc(1_093_733, 'x')
    await fake.close()
    const vocabulary = { [WORLD_VOCABULARY.fileName]: { content } }
    fake = await startFakeHub({ 'fla-hub/rwkv7-1.5B-world': vocabulary, 'fla-hub/rwkv7-0.4B-world': vocabulary })
    await expect(pullVocabulary(options())).rejects.toMatchObject({ code: 'corrupt_weights' })
    expect(readdirSync(join(root, 'cache', 'skein'))).toEqual([])
  })

  test.skipIf(WORLD_VOCABULARY_PATH === null)('from the second location if the first fails', async () => {
    await fake.close()
    const content = readFileSync(WORLD_VOCABULARY_PATH!)
    fake = await startFakeHub({ 'fla-hub/rwkv7-0.4B-world': { [WORLD_VOCABULARY.fileName]: { content } } })
    const { path } = await pullVocabulary(options())
    expect(path).toBe(join(root, 'cache', 'skein', WORLD_VOCABULARY.fileName))
    expect(readFileSync(path)).toEqual(content)
  })
})

describe('redirects and the token', () => {
  const endpoint = new URL('https://huggingface.co')
  const from = new URL('https://huggingface.co/a/b/resolve/main/m.pth')
  test.each([
    ['/api/resolve-cache/models/a/b', 'https://huggingface.co/api/resolve-cache/models/a/b'],
    ['https://cdn-lfs-us-1.hf.co/repos/x?sig=1', 'https://cdn-lfs-us-1.hf.co/repos/x?sig=1'],
    ['https://cas-bridge.xethub.hf.co/x', 'https://cas-bridge.xethub.hf.co/x'],
    ['https://cdn-lfs.huggingface.co/x', 'https://cdn-lfs.huggingface.co/x'],
  ])('to %s is followed', (location, wanted) => {
    expect(nextHop(endpoint, from, location).href).toBe(wanted)
  })

  test.each([
    'http://huggingface.co/x',
    'http://cdn-lfs.hf.co/x',
    'https://evil.example/x',
    'https://huggingface.co.evil.example/x',
    'https://evilhuggingface.co/x',
    'https://user@huggingface.co/x',
    'https://a:b@huggingface.co/x',
    'https://169.254.169.254/latest/meta-data',
    'https://[::ffff:169.254.169.254]/',
    'http://127.0.0.1/',
    'https://cdn.hf.co:8443/x',
    'file:///etc/passwd',
    'data:text/plain,x',
    '//evil.example/x',
    'https://',
  ])('to %s is refused', (location) => {
    expect(() => nextHop(endpoint, from, location)).toThrow('not one of its own hosts')
  })

  test('a backslash does not hide another host', () => {
    // The URL parser reads "\" as "/", so the host is the hub and the rest is a path on it.
    expect(nextHop(endpoint, from, 'https://huggingface.co\\@evil.example/x').hostname).toBe('huggingface.co')
  })

  test('to another host fails, and that host gets no request', async () => {
    const other = await startFakeHub({})
    const location = `${other.url.replace('127.0.0.1', 'localhost')}/x`
    fake.faults.set(CDN_PATH, [{ kind: 'redirect', location }])
    await expect(pullModel('rwkv7-g1-0.4b', options())).rejects.toThrow('not one of its own hosts')
    expect(other.requests).toEqual([])
    await other.close()
  })

  test('without end are stopped', async () => {
    const loop = { kind: 'redirect', location: CDN_PATH } as const
    fake.faults.set(CDN_PATH, Array(10).fill(loop))
    await expect(pullModel('rwkv7-g1-0.4b', options())).rejects.toThrow('more than 5 times')
  })

  test('the token is sent only to the endpoint, and only encrypted', async () => {
    const sent = (at: string, to: string) =>
      headersFor({ ...fake.hub, endpoint: new URL(at), token: 't' }, new URL(to), 0).get('authorization')
    expect(sent('https://huggingface.co', 'https://huggingface.co/x')).toBe('Bearer t')
    expect(sent('https://huggingface.co', 'https://cdn-lfs.hf.co/x')).toBeNull()
    expect(sent('http://mirror.example', 'http://mirror.example/x')).toBeNull()
    await fake.close()
    fake = await startFakeHub(REPOSITORIES, 'secret')
    await pullModel('one/gguf', options())
    expect(fake.tokens).toEqual(Array(fake.tokens.length).fill('Bearer secret'))
  })

  test.each([
    [{}, 'https://huggingface.co/'],
    [{ HF_ENDPOINT: 'https://hf-mirror.com' }, 'https://hf-mirror.com/'],
    [{ HF_ENDPOINT: 'http://10.0.0.1:8080/hf' }, 'http://10.0.0.1:8080/hf'],
  ])('HF_ENDPOINT of %j', (given, wanted) => {
    expect(openHub(given).endpoint.href).toBe(wanted)
  })

  test.each(['file:///etc', 'huggingface.co', 'https://u:p@x', 'https://x/?a=b'])(
    'HF_ENDPOINT may not be %s',
    (value) => {
      expect(() => openHub({ HF_ENDPOINT: value })).toThrow('HF_ENDPOINT is')
    },
  )
})

describe('the cache', () => {
  const place = (path: string, bytes = 10) => {
    mkdirSync(dirname(join(folder, path)), { recursive: true })
    writeFileSync(join(folder, path), Buffer.alloc(bytes))
  }

  test('lists, finds and removes', () => {
    place(`BlinkDL--rwkv7-g1/${NEWEST}`, 1000)
    place('BlinkDL--rwkv7-g1/rwkv7-g1-0.4b-20250324-ctx4096.pth')
    place('BlinkDL--rwkv7-g1/rwkv7-g1-2.9b-20250519-ctx4096.pth.0123456789abcdef.partial', 7)
    place('fla-hub--tiny/config.json', 3)
    place('fla-hub--tiny/model.safetensors', 4)
    place('notes.txt')
    expect(listModels(folder).map(({ name, bytes, isPartial }) => [name, bytes, isPartial])).toEqual([
      ['rwkv7-g1-0.4b-20250324-ctx4096', 10, false],
      ['rwkv7-g1-2.9b-20250519-ctx4096', 7, true],
      [NEWEST.replace('.pth', ''), 1000, false],
      ['fla-hub/tiny', 7, false],
    ])
    const model = findModel(folder, 'rwkv7-g1-0.4b')!
    expect(model.path).toBe(MODEL_PATH)
    expect(findModel(folder, `BlinkDL/rwkv7-g1:${NEWEST}`)?.path).toBe(MODEL_PATH)
    expect(findModel(folder, 'BlinkDL/rwkv7-g1')).toBeUndefined() // two of them
    expect(findModel(folder, 'rwkv7-g1-2.9b')).toBeUndefined() // incomplete
    expect(removeModel(folder, model)).toBe(1000)
    expect(existsSync(MODEL_PATH)).toBe(false)
    removeModel(folder, findModel(folder, 'fla-hub/tiny')!)
    expect(existsSync(join(folder, 'fla-hub--tiny'))).toBe(false)
  })

  test('a model is found by its listed name, also in a subfolder of its repository', () => {
    for (const file of ['m.gguf', 'deep/m.gguf', 'deep/n.gguf']) place(`one--two/${file}`)
    for (const model of listModels(folder)) expect(findModel(folder, model.name)).toEqual(model)
  })

  test('an empty one', () => {
    expect(listModels(folder)).toEqual([])
    expect(findModel(folder, 'rwkv7-g1-0.4b')).toBeUndefined()
  })

  test('neither lists nor removes what a link points to', () => {
    const outside = join(root, 'outside')
    mkdirSync(outside, { recursive: true })
    writeFileSync(join(outside, 'm.pth'), 'precious')
    mkdirSync(join(folder, 'a--b'), { recursive: true })
    symlinkSync(join(outside, 'm.pth'), join(folder, 'a--b', 'm.pth'))
    symlinkSync(outside, join(folder, 'c--d'))
    expect(listModels(folder)).toEqual([])
    const path = join(folder, 'c--d', 'm.pth')
    const model = { name: 'm', repository: 'c/d', path, bytes: 8, isPartial: false }
    expect(() => removeModel(folder, model)).toThrow('it was not touched')
    expect(() => removeModel(folder, { ...model, path: folder })).toThrow('it was not touched')
    expect(readFileSync(join(outside, 'm.pth'), 'utf8')).toBe('precious')
  })
})
