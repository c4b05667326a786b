/** The suggestions of an empty conversation: with the demo model, only topics of its small world. */
// @module-tag night
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openPage } from '../../helpers/chromium.ts'
import { type RunningServer, serve } from '../../helpers/cli.ts'
import { describeInBrowser } from './kit.ts'

/** Text expected in each answer, in the order of the page. */
const ANSWERS = {
  'en-GB': [/capitals, small sums/, /Paris/, /猫非常高兴/, /fox named/],
  'zh-CN': [/首都、小算术/, /巴黎/, /The cat is very happy/, /兔子/],
}

describeInBrowser('the first words of a conversation', (browser) => {
  let server: RunningServer
  beforeAll(async () => {
    server = await serve(['demo'])
  })
  afterAll(() => server?.stop())

  test('on a small phone an empty conversation begins at its top, also after a long one', async () => {
    const { page } = await openPage(browser(), { viewport: { width: 360, height: 640 } })
    await page.goto(`${server.url}/#/playground`)
    const scrolled = () => page.locator('.exchanges').evaluate((list) => list.scrollTop)
    const starters = page.locator('.starters li button')
    await starters.nth(3).waitFor()
    expect(await scrolled()).toBe(0)
    await starters.nth(3).click()
    await page.locator('.answer[aria-busy=false]').waitFor()
    await page.locator('.pane-head .button').last().click()
    await starters.first().waitFor()
    expect(await scrolled()).toBe(0)
    await page.context().close()
  })

  test.each(['en-GB', 'zh-CN'] as const)('the demo model answers each that is offered, in %s', async (locale) => {
    const { page, faults } = await openPage(browser(), { locale })
    await page.goto(`${server.url}/#/playground`)
    const starters = page.locator('.starters li button')
    await starters.nth(3).waitFor()
    expect(await starters.count()).toBe(ANSWERS[locale].length)
    for (const [i, expected] of ANSWERS[locale].entries()) {
      await starters.nth(i).click()
      const answer = page.locator('.answer[aria-busy=false]')
      await answer.waitFor()
      expect(await answer.textContent()).toMatch(expected)
      await page.locator('.pane-head .button').last().click()
      await starters.first().waitFor()
    }
    expect(faults).toEqual([])
    await page.context().close()
  })
})
