/** Home with only the demo model: offers a model to download with one click. */
import { expect, test } from 'vitest'
import { FakeServer, fakeWorker } from '../../web/fake-server.ts'
import { describeInBrowser, fakeOpener } from './kit.ts'

describeInBrowser('the home page of the dashboard', (browser) => {
  const open = fakeOpener(browser)

  test('the largest small model that fits is offered with its size, and downloaded', async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    const { page, faults } = await open(fake)
    const offer = page.getByRole('region', { name: 'A model worth talking to' })
    await offer.getByText('rwkv7-g1-1.5b').waitFor()
    const facts = 'about 3.06 GB · about 5 min at 100 Mbit/s · needs about 3.82 GB · licence Apache-2.0'
    await offer.getByText(facts).waitFor()
    await page.route('**/api/models/pulls', (route) => route.fulfill({ json: { pulls: [] } }))
    const asked = page.waitForRequest(
      (request) => request.method() === 'POST' && request.url().endsWith('/api/models/pulls'),
    )
    await offer.getByRole('button', { name: 'Fetch rwkv7-g1-1.5b' }).click()
    expect((await asked).postDataJSON()).toEqual({ name: 'rwkv7-g1-1.5b' })
    await page.getByRole('heading', { name: 'From the hub' }).waitFor()
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('a user who already has a model is not asked', async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    const { page, url } = await open(fake)
    const json = { models: [{ path: 'small.pth', bytes: 1, modified_at: 1, source: 'pulled' }] }
    await page.route('**/api/models', (route) => route.fulfill({ json }))
    const listed = page.waitForResponse('**/api/models')
    await page.goto(`${url}/?again#/home`)
    await listed
    await page.getByRole('heading', { name: 'Connect a program' }).waitFor()
    expect(await page.getByText('A model worth talking to').count()).toBe(0)
    await page.context().close()
  })
})
