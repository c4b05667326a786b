/** A model in a worker of a page: its file is stored in the browser's own file system and read in place. */
// @module-tag night
import { readFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Browser, chromium, type Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findChromium, openPage } from '../helpers/chromium.ts'

const executable = findChromium()
const reason = executable === null ? ' (skipped: no Chromium on PATH; set CHROMIUM_PATH)' : ''
/** A processor that emulates a GPU takes minutes. */
const TIMEOUT = 240_000

const WORKER = `
  import { load, forgetStored } from '/skein.js'
  const files = async () => {
    const root = await navigator.storage.getDirectory()
    const folder = await root.getDirectoryHandle('skein').catch(() => null)
    const sizes = []
    if (folder) for await (const file of folder.values()) sizes.push((await file.getFile()).size)
    return { sizes: sizes.sort((a, b) => a - b), isCached: await caches.has('skein') }
  }
  onmessage = async ({ data }) => {
    try {
      if (data === 'forget') await forgetStored()
      else {
        const llm = await load('/demo.pth', { onProgress: ({ stage }) => postMessage({ stage }) })
        let text = ''
        for await (const piece of llm.chat([{ role: 'user', content: data }], { temperature: 0, maxTokens: 12 })) text += piece
        llm.close()
        postMessage({ text })
      }
      postMessage({ done: await files() })
    } catch (error) {
      postMessage({ done: null, error: String(error) })
    }
  }
`
const PAGE = `<!doctype html><title>worker</title><script type="module">
  window.ask = (data) => new Promise((resolve) => {
    const worker = new Worker('/worker.js', { type: 'module' })
    const stages = new Set()
    let text = null
    worker.onmessage = ({ data }) => {
      if (data.stage) stages.add(data.stage)
      if (data.text !== undefined) text = data.text
      if (data.done === undefined) return
      worker.terminate()
      resolve({ text, stages: [...stages], error: data.error ?? null, ...data.done })
    }
    worker.onerror = ({ message }) => resolve({ error: message })
    worker.postMessage(data)
  })
</script>`

interface Outcome {
  readonly text: string | null
  readonly stages: readonly string[]
  readonly sizes: readonly number[]
  readonly isCached: boolean
  readonly error: string | null
}

describe.skipIf(executable === null)(`a model in a worker${reason}`, () => {
  let server: Server
  let browser: Browser
  let page: Page
  const asked: string[] = []
  let isGone = false
  beforeAll(async () => {
    const files = new Map<string, () => Promise<Buffer | string>>([
      ['/', async () => PAGE],
      ['/worker.js', async () => WORKER],
      ['/skein.js', () => readFile('dist/browser/skein.js')],
      ['/demo.pth', () => readFile('models/demo.pth')],
      ['/demo.vocab.txt', () => readFile('models/demo.vocab.txt')],
    ])
    server = createServer(async ({ url = '' }, response) => {
      asked.push(url)
      const file = files.get(url)
      if (!file || (isGone && url.startsWith('/demo'))) return response.writeHead(404).end()
      const type = url.endsWith('.js') ? 'text/javascript' : url === '/' ? 'text/html' : 'application/octet-stream'
      response.writeHead(200, { 'content-type': type }).end(await file())
    }).listen(0, '127.0.0.1')
    const args = ['--no-sandbox', '--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader']
    browser = await chromium.launch({ executablePath: executable!, args })
    const opened = await openPage(browser)
    page = opened.page
    await page.goto(`http://localhost:${(server.address() as AddressInfo).port}/`)
  })
  afterAll(async () => {
    await browser?.close()
    server?.close()
  })

  const ask = (data: string) =>
    page.evaluate((text) => (globalThis as unknown as { ask(t: string): Promise<Outcome> }).ask(text), data)

  test('is stored as files, works from them without a network, and can be removed', {
    timeout: 2 * TIMEOUT,
  }, async () => {
    const bytes = [0, 0, (await readFile('models/demo.vocab.txt')).length, (await readFile('models/demo.pth')).length]
    const first = await ask('What is the capital of Japan?')
    expect(first).toMatchObject({ error: null, stages: ['download', 'weights'], sizes: bytes, isCached: false })
    expect(first.text).toContain('Tokyo')
    isGone = true
    asked.length = 0
    const second = await ask('What is the capital of Japan?')
    expect(second).toMatchObject({ error: null, stages: ['weights'], text: first.text, sizes: bytes })
    expect(asked.filter((url) => url.startsWith('/demo'))).toEqual([])
    expect(await ask('forget')).toMatchObject({ error: null, sizes: [] })
  })
})
