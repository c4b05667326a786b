/** Rules for every page: it fits a phone, axe finds no error, and the keyboard reaches everything. */
import { expect, test } from 'vitest'
import { IS_SLOW } from '../../helpers/slow.ts'
import { FakeServer, fakeLoad, fakeWorker } from '../../web/fake-server.ts'
import { describeInBrowser, fakeOpener, NAMELESS, PAGES, violations } from './kit.ts'

describeInBrowser('every page of the dashboard', (browser) => {
  const open = fakeOpener(browser)

  test('every page fits a phone; SKEIN_SLOW=1: in both languages', async () => {
    const load = (at: number) => ({ 'wkr-0123456789': fakeLoad(at) })
    const fake = new FakeServer({ workers: [fakeWorker()], load })
    fake.serveModel('demo', { sessions: ['a session'], answer: 'Yes.' })
    for (const locale of IS_SLOW ? ['en-GB', 'zh-CN'] : ['en-GB']) {
      const options = { viewport: { width: 360, height: 700 }, locale }
      const { page, faults, url } = await open(fake, options)
      for (const name of PAGES) {
        await page.goto(`${url}/#/${name}`)
        await page.locator('main h1').waitFor({ state: 'attached' })
        expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(360)
        expect(await page.evaluate(NAMELESS)).toEqual([])
      }
      expect(await page.evaluate('document.documentElement.lang')).toBe(locale.replace('-GB', ''))
      expect(faults).toEqual([])
      await page.context().close()
    }
  })

  const desk = { width: 1280, height: 800 }
  const phone = { width: 390, height: 844 }
  const LOOKS = [
    ['light', desk],
    ['dark', phone],
    ['light', phone],
    ['dark', desk],
  ] as const
  // Half of the pages, a quarter of them in each of two looks; with SKEIN_SLOW=1 all in all four.
  test.each(IS_SLOW ? LOOKS : LOOKS.slice(0, 2))(
    'axe finds no error on any page, in %s, %o',
    async (colorScheme, viewport) => {
      const load = (at: number) => ({ 'wkr-0123456789': fakeLoad(at) })
      const fake = new FakeServer({ workers: [fakeWorker()], load })
      const answer =
        '# Title\n\n- a\n- b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\nf()\n```\n\n$a^2$ [x](https://example.org)'
      fake.serveModel('demo', { sessions: ['a session'], answer })
      const { page, faults, url } = await open(fake, { viewport, colorScheme })
      const all = [...PAGES, 'sessions/a%20session', 'playground/demo/a%20session']
      const quarter = colorScheme === 'light' ? 0 : 1
      for (const name of all.filter((_, i) => IS_SLOW || i % 4 === quarter)) {
        await page.goto(`${url}/#/${name}`)
        await page.locator('main h1').waitFor({ state: 'attached' })
        await page.locator('.spinner').waitFor({ state: 'detached' })
        if (name.startsWith('playground/')) {
          await page.locator('.prose math').waitFor()
          await page.getByRole('button', { name: 'Settings' }).click()
        }
        expect(await violations(page), name).toEqual([])
      }
      expect(faults).toEqual([])
      await page.context().close()
    },
    180_000,
  )

  for (const [width, columns] of [
    [390, 1],
    [1200, 2],
    [1600, 4],
  ] as const)
    test(
      `at ${width} pixels the charts of the overview have equal sizes, in rows of ${columns} without a gap`,
      columns === 1 ? {} : { tags: 'night' },
      async () => {
        const load = (at: number) => ({ 'wkr-0123456789': fakeLoad(at) })
        const fake = new FakeServer({ workers: [fakeWorker()], load })
        const locales = IS_SLOW || columns === 1 ? ['en-GB', 'zh-CN'] : ['en-GB']
        for (const locale of locales) {
          const { page, url } = await open(fake, { viewport: { width, height: 800 }, locale })
          await page.goto(`${url}/#/overview`)
          await page.locator('.chart canvas').nth(8).waitFor()
          const charts = await page.locator('.chart').all()
          const boxes = await Promise.all(charts.map(async (one) => (await one.boundingBox())!))
          expect(boxes).toHaveLength(9)
          expect(new Set(boxes.map((box) => Math.round(box.height))).size).toBe(1)
          const plots = await page.evaluate(
            "[...document.querySelectorAll('.plot')].map(({ clientHeight }) => clientHeight)",
          )
          expect(new Set(plots as number[])).toEqual(new Set([150]))
          const firstRow = boxes.filter(({ y }) => y === boxes[0]!.y)
          expect(firstRow).toHaveLength(columns)
          const right = ({ x, width: own }: { x: number; width: number }) => Math.round(x + own)
          expect(right(boxes.at(-1)!)).toBe(right(firstRow.at(-1)!))
          await page.context().close()
        }
      },
    )

  test('the first load is at most 150 KB, compressed', async () => {
    const { page } = await open(new FakeServer({ workers: [fakeWorker()] }))
    await page.getByText('Live').waitFor()
    const files = (await page.evaluate(`
      [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
        .filter(({ name }) => !/\\/(api|v1)\\//.test(name))
        .map(({ name, encodedBodySize }) => [name, encodedBodySize])
    `)) as [string, number][]
    const names = files.map(([name]) => name).join()
    expect(names).toMatch(/\/assets\/index-[\w-]+\.js/)
    expect(names).toMatch(/\.css/)
    const bytes = files.reduce((sum, [, size]) => sum + size, 0)
    expect(bytes).toBeGreaterThan(50_000)
    expect(bytes).toBeLessThan(150_000)
    await page.context().close()
  })

  test('if there is room, the controls of a conversation have labels', { tags: 'night' }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    for (const [width, isShown] of [
      [1280, true],
      [390, false],
    ] as const) {
      const { page, url } = await open(fake, { viewport: { width, height: 800 } })
      await page.goto(`${url}/#/playground`)
      const buttons = page.locator('.pane-head .button')
      await buttons.nth(3).waitFor()
      for (const button of await buttons.all()) {
        expect(await button.locator('span').isVisible()).toBe(isShown)
        expect(await button.getAttribute('title')).toBeTruthy()
      }
      await page.context().close()
    }
  })

  test('among many sessions, the open one is in view with its name on one line', {
    tags: 'night',
  }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    const names = Array.from({ length: 60 }, (_, i) => `play-0123456789abcd${i + 10}`)
    fake.serveModel('demo', { sessions: names, answer: 'Yes.' })
    for (const width of [360, 800, 1280]) {
      const { page, url } = await open(fake, { viewport: { width, height: 700 } })
      await page.goto(`${url}/#/sessions`)
      const link = page.getByRole('link', { name: names[40]! })
      expect((await link.boundingBox())!.height).toBeLessThan(30)
      await link.click()
      const remove = page.getByRole('button', { name: 'Delete' })
      await expect.poll(async () => (await remove.boundingBox())?.y).toBeLessThan(620)
      expect((await remove.boundingBox())!.y).toBeGreaterThan(0)
      await page.context().close()
    }
  })

  test('by keyboard alone: the first key skips the navigation, and the focus is visible', async () => {
    const { page } = await open(new FakeServer({ workers: [fakeWorker()] }))
    await page.getByText('Live').waitFor()
    await page.keyboard.press('Tab')
    expect(await page.evaluate('document.activeElement.textContent')).toBe('Skip to the content')
    expect(await page.evaluate('getComputedStyle(document.activeElement).outlineStyle')).toBe('solid')
    await page.keyboard.press('Enter')
    await page.keyboard.press('Tab')
    expect(await page.evaluate("document.activeElement.closest('main') !== null")).toBe(true)
    await page.context().close()
  })
})
