/** Pages of other origins in a real browser: their requests must not reach a handler, and they cannot read replies. */
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Browser, chromium, type Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findChromium } from '../helpers/chromium.ts'
import { type RunningServer, serve } from '../helpers/cli.ts'

const executable = findChromium()
const reason = executable === null ? ' (skipped: no Chromium on PATH; set CHROMIUM_PATH)' : ''

describe.skipIf(executable === null)(`a page of another origin${reason}`, () => {
  let server: RunningServer
  let evil: Server
  let browser: Browser
  let page: Page
  let port: string

  beforeAll(async () => {
    // Open on this machine: the only protection is the browser's rules and the server's check of Origin and Host.
    server = await serve(['--without-model', '--no-store'])
    port = new URL(server.url).port
    evil = createServer((_request, reply) => {
      reply.setHeader('content-type', 'text/html')
      reply.end('<!doctype html><title>elsewhere</title>')
    })
    await new Promise<void>((resolve) => evil.listen(0, '127.0.0.1', resolve))
    // Names that resolve to this machine, as a hostile name server would provide.
    const names = 'MAP evil.example 127.0.0.1, MAP rebound.example 127.0.0.1'
    browser = await chromium.launch({
      executablePath: executable!,
      args: ['--no-sandbox', `--host-resolver-rules=${names}`],
    })
    page = await browser.newPage()
    await page.goto(`http://evil.example:${(evil.address() as AddressInfo).port}/`)
  })
  afterAll(async () => {
    await browser.close()
    evil.close()
    await server.stop()
  })

  const workers = async () => (await (await fetch(`${server.url}/api/workers`)).json()) as object[]
  const START = JSON.stringify({ model_path: 'demo' })

  /** What a script of the page receives for a request. */
  const ask = (path: string, init: object) =>
    page.evaluate(
      async ([url, options]) => {
        try {
          const reply = await fetch(url as string, options as RequestInit)
          return `${reply.type} ${reply.status} ${await reply.text()}`
        } catch (error) {
          return String(error)
        }
      },
      [`http://127.0.0.1:${port}${path}`, init] as const,
    )

  test.each([
    ['a read', '/v1/models', {}],
    [
      'JSON, with a preflight',
      '/api/workers/start',
      { method: 'POST', headers: { 'content-type': 'application/json' }, body: START },
    ],
    ['a deletion', '/v1/sessions/x', { method: 'DELETE' }],
    ['JSON as text', '/api/workers/start', { method: 'POST', body: START }],
    ['credentials', '/v1/models', { credentials: 'include' }],
  ])('%s is refused', async (_name, path, init) => {
    expect(await ask(path, init)).toContain('TypeError')
    expect(await workers()).toEqual([])
  })

  test.each(['/api/workers/start', '/loadmodel', '/removemodel'])(
    'no-cors: %s is sent, and reaches nothing',
    async (path) => {
      const seen = page.waitForResponse((reply) => reply.url().endsWith(path))
      expect(await ask(path, { method: 'POST', mode: 'no-cors', body: START })).toBe('opaque 0 ')
      expect((await seen).status()).toBe(403)
      expect(await workers()).toEqual([])
    },
  )

  test.each(['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data'])(
    'a form of type %s is sent, and reaches nothing',
    async (enctype) => {
      const seen = page.waitForResponse((reply) => reply.url().endsWith('/api/workers/start'))
      const action = `http://127.0.0.1:${port}/api/workers/start`
      // In a frame of its own: a frame that still shows the previous answer may lose the next.
      await page.evaluate(`{
        const sink = document.createElement('iframe')
        sink.name = '${enctype}'
        document.body.append(sink)
        const form = document.createElement('form')
        Object.assign(form, { action: '${action}', enctype: '${enctype}', method: 'POST', target: sink.name })
        const field = document.createElement('input')
        Object.assign(field, { name: '{"model_path":"demo","x":"', value: '"}' })
        form.append(field)
        document.body.append(form)
        form.submit()
      }`)
      expect((await seen).status()).toBe(403)
      expect(await workers()).toEqual([])
    },
  )

  test('a name that is rebound to this machine later gives no access', async () => {
    const rebound = await browser.newPage()
    const reply = await rebound.goto(`http://rebound.example:${port}/`)
    expect(reply?.status()).toBe(403)
    const read = await rebound.evaluate(async () => {
      const answer = await fetch('/v1/models')
      return answer.status
    })
    expect(read).toBe(403)
  })

  test('pages can neither frame the dashboard nor read a cookie of it', async () => {
    const framed = page.waitForResponse((reply) => reply.url() === `http://127.0.0.1:${port}/`)
    await page.evaluate(`{
      const frame = document.createElement('iframe')
      frame.src = 'http://127.0.0.1:${port}/'
      document.body.append(frame)
    }`)
    const headers = await (await framed).allHeaders()
    expect(headers['content-security-policy']).toContain("frame-ancestors 'none'")
    expect(headers['set-cookie']).toBeUndefined()
  })
})
