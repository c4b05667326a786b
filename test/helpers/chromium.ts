/** Drives a local headless Chromium. Every page records errors that must never happen. */
import { existsSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'

const NAMES = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable', 'chrome']

/** CHROMIUM_PATH, or the first of the usual names on PATH; null if none exists. */
export function findChromium(): string | null {
  const { CHROMIUM_PATH, PATH = '' } = process.env
  if (CHROMIUM_PATH) return CHROMIUM_PATH
  const places = PATH.split(delimiter).flatMap((folder) => NAMES.map((name) => join(folder, name)))
  return places.find((place) => existsSync(place)) ?? null
}

export function launchChromium(executablePath: string): Promise<Browser> {
  // Containers have no user namespaces for its sandbox; it opens only pages of these tests.
  return chromium.launch({ executablePath, args: ['--no-sandbox'] })
}

export interface WatchedPage {
  readonly page: Page
  /** Uncaught errors, violations of the content policy, and console errors except replies of status ≥ 400. */
  readonly faults: string[]
}

export async function openPage(browser: Browser, options: BrowserContextOptions = {}): Promise<WatchedPage> {
  const context = await browser.newContext({
    locale: 'en-GB',
    // A test that answers requests itself would not see those that a service worker answers.
    serviceWorkers: 'block',
    ...options,
  })
  context.setDefaultTimeout(20_000)
  const page = await context.newPage()
  const faults: string[] = []
  await page.exposeFunction('reportFault', (fault: string) => faults.push(fault))
  await page.addInitScript(`
    addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI }) => {
      reportFault('policy: ' + violatedDirective + ' ' + blockedURI)
    })
  `)
  page.on('pageerror', (error) => faults.push(`uncaught: ${error.message}`))
  page.on('console', (message) => {
    const isReply = message.text().startsWith('Failed to load resource')
    if (message.type() === 'error' && !isReply) faults.push(`console: ${message.text()}`)
  })
  return { page, faults }
}
