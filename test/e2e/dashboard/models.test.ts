/** The page Models of a real server: a checkpoint is quantised into a smaller file, loaded, unloaded and deleted. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openPage } from '../../helpers/chromium.ts'
import { DEMO, type RunningServer, serve } from '../../helpers/cli.ts'
import { type FakeHub, startFakeHub } from '../../helpers/fake-hub.ts'
import { temporaryFolder } from '../../helpers/temporary-folder.ts'
import { describeInBrowser } from './kit.ts'

describeInBrowser('models in the dashboard', (browser) => {
  const cache = temporaryFolder()
  let hub: FakeHub
  let server: RunningServer
  let page: Page
  let faults: string[]
  beforeAll(async () => {
    const place = join(cache, 'skein/models/someone--rwkv7-tiny')
    mkdirSync(place, { recursive: true })
    // With a vocabulary of its own it needs no other.
    writeFileSync(join(place, 'tiny.vocab.txt'), '')
    const files = { 'tiny.pth': { content: readFileSync(DEMO) } }
    hub = await startFakeHub({ 'someone/rwkv7-tiny': files, 'someone/other': {} })
    server = await serve(['--without-model', '--model-dir', 'models'], 'serve', {
      XDG_CACHE_HOME: cache,
      HF_ENDPOINT: hub.url,
    })
    ;({ page, faults } = await openPage(browser()))
    await page.goto(`${server.url}/#/models`)
  })
  afterAll(async () => {
    await page?.context().close()
    await server?.stop()
    await hub?.close()
  })

  const card = (name: string) => page.locator('.model', { has: page.getByRole('heading', { name, exact: true }) })
  const sure = (action: string) => page.getByRole('dialog').getByRole('button', { name: action, exact: true }).click()

  test('the hub is searched, and a file from it is downloaded', async () => {
    await page.getByLabel('Search the hub').fill('rwkv7')
    await page.getByRole('button', { name: 'Search', exact: true }).click()
    const found = page.getByRole('list', { name: 'On the hub' })
    await found.getByText('someone/rwkv7-tiny').click()
    await found.getByText('tiny.pth').waitFor()
    expect(await found.getByText('someone/other').count()).toBe(0)
    await page.getByRole('button', { name: 'Fetch someone/rwkv7-tiny:tiny.pth' }).click()
    await page.locator('.pull', { hasText: 'tiny.pth' }).getByText('fetched').waitFor()
    await card('tiny').getByText('pulled').waitFor()
  })

  test('a smaller file is written, with its vocabulary, and listed', async () => {
    await card('demo').getByText('needs about').waitFor()
    expect(await card('demo').getByRole('button', { name: 'Delete demo' }).count()).toBe(0)
    await card('demo').getByRole('button', { name: 'Quantise demo' }).click()
    await page.getByLabel('Precision').selectOption('int8')
    await sure('Write a smaller file')
    await card('demo-int8').getByText('pulled').waitFor()
    await page.locator('.pull', { hasText: 'demo.pth int8' }).getByText('quantised').waitFor()
    const folder = join(cache, 'skein/models/local--quantised')
    expect(existsSync(join(folder, 'demo-int8.safetensors'))).toBe(true)
  })

  test('it is loaded, shows its capacity, and cannot be deleted meanwhile', async () => {
    const own = card('demo-int8')
    await own.getByRole('button', { name: 'Load', exact: true }).click()
    await own.getByText('loaded', { exact: true }).waitFor()
    await own.getByText(/\d+ conversations at once/).waitFor()
    expect(await own.getByRole('button', { name: 'Delete demo-int8' }).isDisabled()).toBe(true)
    await own.getByRole('button', { name: 'Unload' }).click()
    await sure('Unload')
    await own.getByRole('button', { name: 'Load', exact: true }).waitFor()
  })

  test('it is deleted after a confirmation, and the original stays', async () => {
    await card('demo-int8').getByRole('button', { name: 'Delete demo-int8' }).click()
    await page.getByRole('dialog').getByText('is deleted from the disk').waitFor()
    await sure('Delete')
    await card('demo-int8').waitFor({ state: 'detached' })
    expect(existsSync(join(cache, 'skein/models/local--quantised/demo-int8.safetensors'))).toBe(false)
    await card('demo').waitFor()
  })

  test('a worker may quantise while loading, with a name of its own', { tags: 'night' }, async () => {
    await card('demo').getByRole('button', { name: 'Quantise demo' }).click()
    await page.getByLabel('Precision').selectOption('q4')
    await sure('Quantise and load')
    await card('demo').getByText('loaded', { exact: true }).waitFor()
    await card('demo').getByText('· q4 ·').waitFor()
    await card('demo').getByText('served as demo-q4').waitFor()
    expect(faults).toEqual([])
  })
})
