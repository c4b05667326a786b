/** Shared by the tests of the dashboard: a Chromium, the pages, and checks of a page. */
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe } from 'vitest'
import { findChromium, launchChromium, openPage } from '../../helpers/chromium.ts'
import type { FakeServer } from '../../web/fake-server.ts'

const executable = findChromium()
const reason = executable === null ? ' (skipped: no Chromium on PATH; set CHROMIUM_PATH)' : ''

/** One for all files of a process; it ends with the process. */
let chromium: Promise<Browser> | null = null

/** Tests with a browser, if there is one. */
export function describeInBrowser(name: string, tests: (browser: () => Browser) => void): void {
  describe.skipIf(executable === null)(`${name}${reason}`, () => {
    let browser: Browser
    beforeAll(async () => {
      chromium ??= launchChromium(executable!)
      browser = await chromium
    })
    // Pages left by a failed test.
    afterAll(async () => {
      for (const context of browser?.contexts() ?? []) await context.close()
    })
    tests(() => browser)
  })
}

/** Opens pages of fake servers, which end with the tests. */
export function fakeOpener(browser: () => Browser) {
  const opened: FakeServer[] = []
  afterAll(async () => {
    for (const fake of opened) await fake.close()
  })
  return async (fake: FakeServer, options = {}) => {
    if (!fake.app.server.listening) await fake.app.listen({ port: 0, host: '127.0.0.1' })
    opened.push(fake)
    const url = fake.app.listeningOrigin
    const watched = await openPage(browser(), options)
    await watched.page.goto(url)
    return { ...watched, url }
  }
}

export const PAGES = [
  'home',
  'playground',
  'translate',
  'batch',
  'requests',
  'models',
  'workers',
  'overview',
  'machines',
  'sessions',
  'keys',
  'api',
  'docs',
  'settings',
]

/** Controls without a name for screen readers, and duplicate ids. */
export const NAMELESS = `
  [...document.querySelectorAll('button, a, input, select, textarea, progress, meter, [role=img]')]
    .filter((one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim()) && !one.closest('li'))
    .map((one) => one.outerHTML)
    .concat([...document.querySelectorAll('[id]')].map(({ id }) => id).filter((id, i, ids) => ids.indexOf(id) < i))
`

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

/** The violations that axe-core reports: rules and the elements that break them. */
export async function violations(page: Page): Promise<unknown> {
  await page.evaluate(`if (!globalThis.axe) { ${AXE} }`)
  return page.evaluate(`
    axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) =>
      violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html.slice(0, 160))]),
    )
  `)
}
