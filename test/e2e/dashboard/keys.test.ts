/** The page Keys, from the first key of an open server on. */
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openPage } from '../../helpers/chromium.ts'
import { type RunningServer, serve } from '../../helpers/cli.ts'
import { temporaryFolder } from '../../helpers/temporary-folder.ts'
import { describeInBrowser } from './kit.ts'

const file = join(temporaryFolder(), 'keys.json')

describeInBrowser('the page Keys', (browser) => {
  let server: RunningServer
  beforeAll(async () => {
    server = await serve(['--without-model', '--no-store', '--keys', file])
  })
  afterAll(async () => {
    await server?.stop()
  })

  test('a key is added, changed, and given a new secret', async () => {
    const { page, faults } = await openPage(browser())
    const press = (name: string) => page.getByRole('button', { name, exact: true }).click()
    const row = page.locator('tr', { hasText: 'alice' })
    const limits = async () => (await row.locator('td').nth(1).textContent()) ?? ''
    await page.goto(`${server.url}/#/keys`)
    await press('Add a key')
    await press('Add')
    expect(await page.locator('.secret code').textContent()).toMatch(/^sk-skein-/)
    await press('Done')

    await press('Add a key')
    await page.getByLabel('Name').fill('alice')
    await page.getByLabel('Days until it expires').fill('30')
    await page.getByText('Limits', { exact: true }).last().click()
    await page.getByLabel('Answers at once').fill('2')
    await press('Add')
    const secret = String(await page.locator('.secret code').textContent())
    await press('Done')
    expect(await limits()).toBe('2 answers at once')

    await row.getByRole('button', { name: 'Change' }).click()
    await page.getByLabel('Answers at once').fill('')
    await page.getByLabel('Requests a minute').fill('60')
    await page.getByLabel('Days until it expires').fill('0')
    await press('Save')
    await expect.poll(limits).toBe('60 requests/min')
    expect(await row.locator('td').nth(2).textContent()).toBe('never')
    const headers = { authorization: `Bearer ${secret}` }
    const me = async () => (await fetch(`${server.url}/v1/me`, { headers })).status
    expect(await me()).toBe(200)

    await row.getByRole('button', { name: 'Revoke' }).click()
    await page.locator('dialog').getByRole('button', { name: 'Revoke' }).click()
    await expect.poll(me).toBe(401)
    expect(faults).toEqual([])
    await page.context().close()
  })
})
