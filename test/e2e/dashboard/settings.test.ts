/** The pages Settings and Docs. */
import { expect, test } from 'vitest'
import { IS_SLOW } from '../../helpers/slow.ts'
import { FakeServer, fakeWorker } from '../../web/fake-server.ts'
import { describeInBrowser, fakeOpener } from './kit.ts'

describeInBrowser('settings and docs in the dashboard', (browser) => {
  const open = fakeOpener(browser)

  test('choices take effect at once and survive a reload, until they are reset', async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    const { page, faults, url } = await open(fake)
    await page.goto(`${url}/#/settings`)
    await page.getByLabel('What sends a message').selectOption('ctrl-enter')
    await page.getByLabel('Theme', { exact: true }).selectOption('dark')
    await page.getByLabel('Language').selectOption('zh')
    await page.reload()
    await page.getByRole('heading', { name: '设置' }).waitFor()
    expect(await page.evaluate('document.documentElement.dataset.theme')).toBe('dark')
    await page.goto(`${url}/#/playground`)
    const box = page.locator('.composer textarea')
    await box.fill('Well?')
    await box.press('Enter')
    expect(await box.inputValue()).toBe('Well?\n')
    await box.press('Control+Enter')
    await page.locator('.answer', { hasText: 'Yes.' }).waitFor()
    await page.goto(`${url}/#/settings`)
    await page.getByText('1 个对话的名称').waitFor()
    await page.getByRole('button', { name: '全部清除' }).click()
    await page.getByRole('dialog').getByRole('button', { name: '全部清除' }).click()
    await page.getByText('folders of conversations (0)').waitFor()
    expect(await page.getByLabel('What sends a message').inputValue()).toBe('enter')
    expect(await page.evaluate('document.documentElement.dataset.theme')).toBe('system')
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('the key in use is shown, and can be forgotten', async () => {
    const { page, url } = await open(new FakeServer({ key: 'sk-right', workers: [fakeWorker()] }))
    await page.getByRole('dialog').getByLabel('Key').fill('sk-right')
    await page.keyboard.press('Enter')
    await page.getByText('Live').waitFor()
    const limits = { requests_per_minute: null, tokens_per_minute: null, rows: null }
    const own = { name: 'boss', role: 'admin', expires_at: null, use: {} }
    await page.route('**/v1/me', (route) =>
      route.fulfill({ json: { ...own, limits: { ...limits, stored_bytes: null } } }),
    )
    await page.goto(`${url}/#/settings`)
    const main = page.getByRole('main')
    await main.getByText('boss').waitFor()
    await main.getByRole('button', { name: 'Forget the key' }).click()
    await main.getByText('This server is used without a key.').waitFor()
    await page.context().close()
  })

  test('a link to a heading scrolls to it, also on another page; names in tables stay on one line', async () => {
    const { page, faults, url } = await open(new FakeServer({ workers: [fakeWorker()] }))
    const topOf = async (heading: string) => {
      const box = await page.locator('.prose [class^=level-]', { hasText: heading }).first().boundingBox()
      return Math.round(box?.y ?? Number.NaN)
    }
    await page.goto(`${url}/#/docs/api`)
    await page.locator('.prose a[href$="#/docs/api#files-and-batches"]').first().click()
    expect(page.url()).toBe(`${url}/#/docs/api#files-and-batches`)
    await expect.poll(() => topOf('Files and batches')).toBe(0)
    await page.evaluate('scrollTo(0, 0)')
    await page.locator('.prose a[href$="#/docs/api#files-and-batches"]').first().click()
    await expect.poll(() => topOf('Files and batches')).toBe(0)
    await page.goto(`${url}/#/docs/sessions`)
    await page.locator('.prose a[href*="#/docs/api#"], .prose a[href*="#/docs/operations#"]').first().click()
    await expect.poll(() => page.evaluate('scrollY')).toBeGreaterThan(0)
    for (const name of ['management', 'dialects', 'reference']) {
      await page.goto(`${url}/#/docs/${name}`)
      await page.locator('.prose .level-1').waitFor()
      const broken = `[...document.querySelectorAll('.prose td:first-child code')]
        .filter((one) => one.getClientRects().length > 1).map((one) => one.textContent)`
      expect(await page.evaluate(broken)).toEqual([])
    }
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('every page of the docs opens, and links between them stay in the dashboard', { tags: 'night' }, async () => {
    const { page, faults, url } = await open(new FakeServer({ workers: [fakeWorker()] }))
    await page.getByRole('link', { name: 'Docs' }).click()
    const text = page.locator('.doc-pages .prose')
    await text.getByRole('heading', { name: 'Get a model worth talking to' }).waitFor()
    await text.getByRole('link', { name: 'More about models' }).click()
    await text.getByRole('heading', { name: 'What is read' }).waitFor()
    expect(page.url()).toBe(`${url}/#/docs/models`)
    // SKEIN_SLOW=1: all of them.
    const links = await page.locator('.doc-pages nav a').all()
    for (const link of links.filter((_, i) => IS_SLOW || i % 4 === 0)) {
      await link.click()
      await text.locator('.level-1').waitFor()
      expect(await text.getByRole('alert').count()).toBe(0)
    }
    await page.locator('.doc-pages nav a', { hasText: 'Clients' }).click()
    await text.getByRole('link', { name: 'LangChain' }).click()
    await text.getByText('npm install @langchain/openai').waitFor()
    expect(page.url()).toBe(`${url}/#/docs/clients/langchain`)
    await page.getByRole('button', { name: '中文' }).click()
    await page.locator('.doc-pages nav a').first().click()
    await page.locator('.prose[lang=zh-CN] .level-1').waitFor()
    await page.goto(`${url}/#/docs/..%2F..%2Fpackage`)
    await text.getByRole('alert').waitFor()
    expect(faults).toEqual([])
    await page.context().close()
  })
})
