import { cpSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import fastify from 'fastify'
import { describe, expect, test } from 'vitest'
import { isForWeb, mountWeb, readWebFiles } from '../../src/gateway/pages/dashboard.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { serve } from './kit.ts'

const SCRIPT = `${'console.log(1);'.repeat(200)}\n`
const ASSET = '/assets/index-Ab3_-d9x.js'

function builtFolder(): string {
  const folder = join(temporaryFolder(), 'web')
  mkdirSync(join(folder, 'assets'), { recursive: true })
  writeFileSync(join(folder, 'index.html'), '<!doctype html>')
  writeFileSync(join(folder, ASSET), SCRIPT)
  writeFileSync(join(folder, 'assets/goose.svg'), '<svg/>')
  writeFileSync(join(folder, 'assets/index.js.map'), '{}')
  writeFileSync(join(folder, '../secret.js'), 'secret')
  return folder
}

/** The files that the build copies, beside a page. */
function publicFolder(): string {
  const folder = join(temporaryFolder(), 'public')
  cpSync(join(import.meta.dirname, '../../web/public'), folder, { recursive: true })
  writeFileSync(join(folder, 'index.html'), '<!doctype html>')
  return folder
}

const files = readWebFiles([join(temporaryFolder(), 'nothing'), builtFolder()])
const app = fastify()
mountWeb(app, files)

describe('the files of the dashboard', () => {
  test('are those of the build, of the types that pages have', () => {
    const paths = [...files.keys()].filter((path) => !path.startsWith('/docs/'))
    expect(paths.sort()).toEqual(['/', '/assets/goose.svg', ASSET])
  })

  test('and the user pages of docs/', async () => {
    const paths = [...files.keys()].filter((path) => path.startsWith('/docs/'))
    expect(paths).toContain('/docs/zh/troubleshooting.md')
    expect(paths).toContain('/docs/clients/openai.md')
    const own = /^\/docs\/(?:zh\/|clients\/)?[\w-]+\.md$/
    expect(paths.filter((path) => !own.test(path))).toEqual([])
    const reply = await app.inject('/docs/getting-started.md')
    expect(reply.headers['content-type']).toMatch(/^text\/markdown; charset=utf-8$/)
    expect(reply.body).toContain('# Getting started')
    expect((await app.inject('/docs/dev/adding.md')).statusCode).toBe(404)
  })

  test('the page may load only files of this server, and cannot be framed', async () => {
    const reply = await app.inject('/')
    expect(reply.headers['content-type']).toBe('text/html; charset=utf-8')
    expect(reply.headers['cache-control']).toBe('no-cache')
    const policy = String(reply.headers['content-security-policy'])
    expect(policy).toMatch(/^default-src 'none'; /)
    expect(policy).toContain("frame-ancestors 'none'")
    expect(policy).not.toMatch(/unsafe|https?:|data:|\*/)
    expect(reply.headers).toMatchObject({ 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer' })
  })

  test('files named by their content are cached for a year, and compressed for clients that accept it', async () => {
    const plain = await app.inject(ASSET)
    expect(plain.body).toBe(SCRIPT)
    expect(plain.headers['cache-control']).toBe('public, max-age=31536000, immutable')
    const packed = await app.inject({ url: ASSET, headers: { 'accept-encoding': 'br, gzip' } })
    expect(packed.headers['content-encoding']).toBe('gzip')
    expect(gunzipSync(packed.rawPayload).toString()).toBe(SCRIPT)
    const icon = await app.inject('/assets/goose.svg')
    expect(icon.headers['cache-control']).toBe('no-cache')
  })

  test('the page can be installed: its manifest names icons that are there', async () => {
    const built = fastify()
    mountWeb(built, readWebFiles([publicFolder()]))
    const manifest = await built.inject('/assets/app.webmanifest')
    expect(manifest.headers['content-type']).toBe('application/manifest+json')
    const { icons } = manifest.json<{ icons: { src: string; type: string }[] }>()
    for (const { src, type } of [...icons, { src: '/favicon.ico', type: 'image/x-icon' }]) {
      const icon = await built.inject(src)
      expect([icon.statusCode, icon.headers['content-type']]).toEqual([200, type])
    }
  })

  test('unchanged files are not sent again', async () => {
    const { headers } = await app.inject('/')
    const again = await app.inject({ url: '/', headers: { 'if-none-match': String(headers.etag) } })
    expect([again.statusCode, again.body]).toEqual([304, ''])
  })

  test.each([
    '/assets/../../secret.js',
    '/assets/..%2f..%2fsecret.js',
    '/assets/%2e%2e/%2e%2e/secret.js',
    '/assets/..\\..\\secret.js',
    '/assets/',
    '/assets/index.js.map',
    '/assets//index-Ab3_-d9x.js',
  ])('%s is not among them', async (url) => {
    expect((await app.inject(url)).statusCode).toBe(404)
    expect(isForWeb(files, 'GET', url)).toBe(false)
  })
})

test('without a build the page says what to do', async () => {
  const bare = fastify()
  mountWeb(bare, readWebFiles([]))
  const reply = await bare.inject('/')
  expect([reply.statusCode, reply.json().message]).toEqual([404, expect.stringContaining('npm run build')])
})

test('the page needs no key, and nothing else is open', async () => {
  const { app: keyed } = serve(undefined, { keys: ['sk-test'] })
  const status = async (url: string) => (await keyed.inject(url)).statusCode
  expect(await status('/')).toBe(200)
  expect(await status('/?key=1')).toBe(200)
  expect(await status('/assets/no-such-file.js')).toBe(401)
  expect(await status('//')).toBe(401)
  expect(await status('/v1/models')).toBe(401)
  expect((await keyed.inject({ method: 'POST', url: '/' })).statusCode).toBe(401)
})
