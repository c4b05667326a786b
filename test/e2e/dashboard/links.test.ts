/** A link to a conversation, from one key to another: it gives a copy, and does not change the original. */
// @module-tag night
import type { Page } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openPage } from '../../helpers/chromium.ts'
import { type RunningServer, serve } from '../../helpers/cli.ts'
import { describeInBrowser } from './kit.ts'

describeInBrowser('links between keys', (browser) => {
  let server: RunningServer
  beforeAll(async () => {
    server = await serve(['demo', '--api-key', 'of-alice,of-bob'])
  })
  afterAll(async () => {
    await server?.stop()
  })

  const openAs = async (key: string, path: string): Promise<Page> => {
    const permissions = ['clipboard-read', 'clipboard-write']
    const { page } = await openPage(browser(), { permissions })
    await page.addInitScript(`sessionStorage.setItem('skein.key', '${key}')`)
    await page.goto(path)
    return page
  }
  const ask = async (page: Page, question: string) => {
    await page.getByLabel('Message').fill(question)
    await page.getByRole('button', { name: 'Send', exact: true }).click()
    await page.locator('.exchange').last().locator('.answer[aria-busy=false]').waitFor()
  }

  test('another key sees the conversation, and continues a copy', async () => {
    const alice = await openAs('of-alice', `${server.url}/#/playground`)
    await ask(alice, 'What is the capital of France?')
    await alice.getByRole('button', { name: /^Copy a link to this conversation up to here; anyone/ }).click()
    await alice.getByRole('button', { name: 'Copied' }).waitFor()
    const link = String(await alice.evaluate('navigator.clipboard.readText()'))
    expect(link).toContain(`${server.url}/#/playground/demo/shared%3A`)
    await ask(alice, 'What is 3 plus 4?')

    const bob = await openAs('of-bob', link)
    await bob.getByText('Paris').waitFor()
    expect(await bob.getByText('3 plus 4').count()).toBe(0)
    await ask(bob, 'What is the capital of Japan?')
    await bob.reload()
    await bob.getByText('Tokyo').waitFor()
    await alice.reload()
    await alice.getByText('3 plus 4').first().waitFor()
    expect(await alice.getByText('Japan').count()).toBe(0)
    // A truncated link opens nothing, and says so.
    await bob.goto(link.slice(0, -9))
    await bob.reload()
    await bob.getByText('this server did not make this link').waitFor()
    for (const page of [alice, bob]) await page.context().close()
  })
})
