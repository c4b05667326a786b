/** The page that runs the demo model on the visitor's GPU: Chromium's own, emulated by the processor. */
import { type Browser, chromium } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findChromium, openPage, type WatchedPage } from '../helpers/chromium.ts'
import { type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { IS_SLOW } from '../helpers/slow.ts'

const executable = findChromium()
const reason = executable === null ? ' (skipped: no Chromium on PATH; set CHROMIUM_PATH)' : ''
/** A processor that emulates a GPU is slow, especially beside other tests. */
const TIMEOUT = 240_000

describe.skipIf(executable === null)(`the page of the model in the browser${reason}`, () => {
  let server: RunningServer
  let browser: Browser
  let watched: WatchedPage
  beforeAll(async () => {
    server = await serve(['--no-store'])
    const args = ['--no-sandbox', '--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader']
    browser = await chromium.launch({ executablePath: executable!, args })
    watched = await openPage(browser, { viewport: { width: 900, height: 500 }, serviceWorkers: 'allow' })
  })
  afterAll(async () => {
    await browser?.close()
    await server?.stop()
  })

  const ask = async (question: string) => {
    const { page } = watched
    await page.getByLabel('Message').fill(question)
    await page.getByRole('button', { name: 'Send' }).click()
    const answer = page.locator('.answer').last()
    await expect.poll(() => answer.getAttribute('aria-busy'), { timeout: TIMEOUT }).toBe('false')
    return await answer.textContent()
  }

  const loadModel = async () => {
    const { page } = watched
    await page.getByRole('button', { name: 'Load the model' }).click()
    await page.getByRole('button', { name: 'Send' }).waitFor({ timeout: TIMEOUT })
  }

  test('gives the answers of the server, also without one', { timeout: 2 * TIMEOUT }, async () => {
    const { page, faults } = watched
    const reply = await page.goto(`${server.url}/browser`)
    expect(reply!.url()).toBe(`${server.url}/browser/`)
    const policy = reply!.headers()['content-security-policy']!
    expect(policy).toContain('trusted-types skein-browser')
    expect(policy).not.toMatch(/unsafe|blob:|data:|\*/)
    await loadModel()
    const question = 'What is the capital of Japan?'
    const answer = await ask(question)
    const body = { model: 'demo', temperature: 0, messages: [{ role: 'user', content: question }] }
    const completion = await postJson(`${server.url}/v1/chat/completions`, body)
    const { choices } = (await completion.json()) as {
      readonly choices: readonly { readonly message: { readonly content: string } }[]
    }
    expect(answer).toBe(choices[0]!.message.content)
    expect(answer).toContain('Tokyo')
    const { SCREENSHOT } = process.env
    if (SCREENSHOT) await page.screenshot({ path: SCREENSHOT })
    await page.locator('html[data-kept=yes]').waitFor({ timeout: TIMEOUT })
    expect(faults).toEqual([])
    if (!IS_SLOW) return
    // The server is gone: page and model are in the browser.
    await server.stop()
    await page.reload()
    await loadModel()
    expect(await page.locator('#status').textContent()).toContain('5.7 M parameters on webgpu')
    expect(faults).toEqual([])
  })
})
