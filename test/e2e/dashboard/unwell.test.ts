/** The dashboard with servers in trouble: hostile texts, failures, lost connections, keys. */
import { expect, test } from 'vitest'
import { FakeServer, fakeWorker } from '../../web/fake-server.ts'
import { describeInBrowser, fakeOpener } from './kit.ts'

const PAYLOADS = [
  '<img src=x onerror="window.harmed=1">',
  '<script>window.harmed=1</script>',
  '"><svg onload=window.harmed=1>',
  "javascript:window.harmed=1//'",
  '\u202e</title><iframe srcdoc="<script>parent.harmed=1</script>">',
]

describeInBrowser('the dashboard of a server that is not well', (browser) => {
  const open = fakeOpener(browser)

  test('markup in names, reasons, logs, sessions and answers is shown as text', async () => {
    const bad = PAYLOADS.join(' ')
    const worker = fakeWorker({
      model: bad,
      reason: bad,
      phase: 'failed',
      spec: { ...fakeWorker().spec, model_path: bad },
    })
    const fake = new FakeServer({ workers: [worker], logLines: [bad] })
    fake.serveModel(bad, { sessions: [bad], answer: bad })
    const { page, faults, url } = await open(fake)
    const check = async (times: number) => {
      const shown = async () => ((await page.locator('body').textContent()) ?? '').split(PAYLOADS[0]!).length - 1
      await expect.poll(shown, { timeout: 10_000 }).toBeGreaterThanOrEqual(times)
      expect(await page.locator('main img, main iframe, main script, a[href^=java]').count()).toBe(0)
      expect(await page.evaluate(`'harmed' in globalThis`)).toBe(false)
    }
    await check(1)
    await page.goto(`${url}/#/workers/${worker.worker_id}`)
    await check(4)
    await page.goto(`${url}/#/playground`)
    await page.getByLabel('Message').fill(bad)
    await page.keyboard.press('Enter')
    await page.locator('.answer[aria-busy=false]').waitFor()
    await check(3)
    await page.goto(`${url}/#/sessions`)
    await page.locator('.list tbody a').click()
    await check(3)
    await page.goto(`${url}/#/api`)
    await check(2)
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('a loading worker shows its progress, and a failed one shows the reason', async () => {
    const worker = fakeWorker({ phase: 'loading', info: null, ready_at: null })
    const fake = new FakeServer({ workers: [worker] })
    const { page, faults, url } = await open(fake)
    await page.goto(`${url}/#/workers`)
    await page.locator('.badge', { hasText: 'loading' }).waitFor()
    const progress = { done_bytes: 3 * 2 ** 30, total_bytes: 4 * 2 ** 30 }
    fake.send({ type: 'worker', worker: { ...worker, progress } })
    await page.getByText('3.22 GB / 4.29 GB').waitFor()
    const reason = 'demo.pth: expected a zip archive'
    const failed = { ...worker, status: 'exited', phase: 'failed', exit_code: 1, reason } as const
    fake.send({ type: 'worker', worker: failed })
    await page.getByText(reason).waitFor()
    await page.getByRole('link', { name: 'Workers 1' }).waitFor()
    expect(await page.getByRole('button', { name: 'Start again' }).isVisible()).toBe(true)
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('a thought is folded, code is a block, and an interrupted answer says why', {
    tags: 'night',
  }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    const answer = '<think>\nHm.\n</think>\nTry **this**:\n```js\nf()\n```\nor'
    fake.serveModel('demo', { sessions: [], answer, error: 'the worker ended' })
    const { page, faults, url } = await open(fake)
    await page.goto(`${url}/#/playground`)
    await page.getByLabel('Message').fill('How?')
    await page.keyboard.press('Enter')
    const shown = page.locator('.answer[aria-busy=false]')
    await shown.getByRole('alert').getByText('the worker ended').waitFor()
    expect(await shown.locator('.text').allTextContents()).toEqual(['Try this:', 'or'])
    expect(await shown.locator('.code pre').textContent()).toBe('f()')
    const thought = shown.getByText('Hm.')
    expect(await thought.isVisible()).toBe(false)
    await shown.getByText('Thought').click()
    expect(await thought.isVisible()).toBe(true)
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('a key is requested and kept by the tab; a wrong one is requested again', async () => {
    const fake = new FakeServer({ key: 'sk-right', workers: [fakeWorker()] })
    const { page, faults } = await open(fake)
    const dialog = page.getByRole('dialog')
    // A user who is asked for a key can type at once.
    await expect.poll(() => page.evaluate('document.activeElement?.localName')).toBe('input')
    await page.keyboard.type('sk-wrong')
    await page.keyboard.press('Enter')
    await dialog.getByText('does not know this key').waitFor()
    // The same key again counts as another try.
    const refused = page.waitForResponse('**/v1/models')
    await page.getByRole('textbox', { name: 'Key' }).fill('sk-wrong')
    await page.keyboard.press('Enter')
    await refused
    await dialog.getByText('does not know this key').waitFor()
    await dialog.getByLabel('Key').fill('sk-right')
    await page.keyboard.press('Enter')
    await page.getByText('Live · admin').waitFor()
    await page.reload()
    await page.getByText('Live · admin').waitFor()
    expect(await page.evaluate('JSON.stringify(localStorage)')).not.toContain('sk-right')
    await page.getByRole('button', { name: 'Forget the key' }).click()
    await page.getByText('This server asks for a key.').waitFor()
    expect(faults).toEqual([])
    await page.context().close()
  })

  test.each([
    [403, 'This key may use models, but not watch'],
    [404, 'This address belongs to one worker'],
  ] as const)(
    'where the server may not be watched (%s), models can be used',
    { tags: 'night' },
    async (refuse, why) => {
      const fake = new FakeServer({ refuse })
      fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
      const { page, faults, url } = await open(fake)
      await page.getByText(why).waitFor()
      await page.goto(`${url}/#/playground`)
      await page.getByLabel('Message').fill('Well?')
      await page.keyboard.press('Enter')
      await page.locator('.answer', { hasText: 'Yes.' }).waitFor()
      expect(faults).toEqual([])
      await page.context().close()
    },
  )

  test('a key that is revoked while watching is requested once, not every ten seconds', {
    tags: 'night',
  }, async () => {
    const fake = new FakeServer({ refuse: 403 })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    const { page, faults } = await open(fake)
    await page.clock.install()
    await page.reload()
    await page.getByText('This key may use models, but not watch').waitFor()
    const error = { message: 'the API key is not valid on this server', code: 'invalid_api_key' }
    let numAsked = 0
    await page.route('**/v1/models', (route) => {
      numAsked++
      return route.fulfill({ status: 401, json: { error } })
    })
    await page.clock.fastForward(10_500)
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
    await page.getByText('This server asks for a key.').waitFor()
    await page.clock.fastForward(60_000)
    expect(numAsked).toBe(1)
    expect(await page.getByRole('dialog').count()).toBe(0)
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('a broken stream is reported, and reconnected', async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    const { page, faults } = await open(fake)
    await page.getByText('Live').waitFor()
    fake.drop()
    await page.getByText(/Connection lost .* next try in/).waitFor()
    await page.getByText('Live').waitFor()
    expect(await page.getByText(/Connection lost/).count()).toBe(0)
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('it opens without its server, from files in the browser', { tags: 'night' }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    const { page, faults } = await open(fake, { serviceWorkers: 'allow' })
    await page.getByText('Live').waitFor()
    // After the service worker has taken over, the files of the first load are stored.
    await page.evaluate('navigator.serviceWorker.ready.then(() => 0)')
    await fake.close()
    await page.reload()
    await page.getByText(/Connection lost/).waitFor()
    await page.getByRole('link', { name: 'Chat' }).waitFor()
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('a page that failed to load is loaded when the server is back', { tags: 'night' }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: ['a session'], answer: 'Yes.' })
    const { page, faults, url } = await open(fake)
    await page.getByText('Live').waitFor()
    await page.route('**/v1/sessions*', (route) => route.abort())
    await page.goto(`${url}/#/sessions`)
    await page.locator('main').getByRole('alert').waitFor()
    expect(await page.locator('.spinner').count()).toBe(0)
    await page.unroute('**/v1/sessions*')
    fake.drop()
    await page.getByRole('link', { name: 'a session' }).waitFor()
    expect(await page.locator('main').getByRole('alert').count()).toBe(0)
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('sessions of a loading model are loaded when it is ready', { tags: 'night' }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker({ phase: 'loading' })] })
    fake.serveModel('demo', { sessions: ['a session'], answer: 'Yes.' })
    const { page, url } = await open(fake)
    await page.route('**/v1/models', (route) => route.fulfill({ json: { data: [{ id: 'demo', state: 'loading' }] } }))
    const error = { message: 'the model is not ready: loading, 12 %', code: 'model_not_loaded' }
    await page.route('**/v1/sessions*', (route) => route.fulfill({ status: 503, json: { error } }))
    await page.goto(`${url}/#/sessions`)
    await page.reload()
    await page.locator('main').getByText('loading, 12 %').waitFor()
    await page.unrouteAll()
    fake.send({ type: 'worker', worker: fakeWorker() })
    await page.getByRole('link', { name: 'a session' }).waitFor()
    await page.context().close()
  })

  test('conversations stay listed while their model is started again', { tags: 'night' }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: ['a session'], answer: 'Yes.' })
    const { page, url } = await open(fake)
    await page.goto(`${url}/#/playground`)
    const listed = page.locator('.conversations').getByRole('link', { name: 'a session' })
    await listed.waitFor()
    const models = { data: [{ id: 'demo', state: 'restarting' }] }
    await page.route('**/v1/models', (route) => route.fulfill({ json: models }))
    const asked = page.waitForResponse('**/v1/models')
    fake.send({ type: 'worker', worker: fakeWorker({ phase: 'restarting' }) })
    await asked
    await page.getByText('demo (not ready)').first().waitFor({ state: 'attached' })
    expect(await listed.count()).toBe(1)
    await page.context().close()
  })

  test('a chat opened before the first model is listed is with the model, not one worker; the cursor is in its box', async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    const { page, url } = await open(fake)
    await page.route('**/v1/models', (route) => route.fulfill({ json: { data: [] } }))
    await page.goto(`${url}/#/playground`)
    await page.reload()
    await page.locator('main').getByText('No model is running').waitFor()
    expect(await page.evaluate(`document.activeElement.getAttribute('aria-label')`)).toBe('Message')
    await page.unrouteAll()
    fake.send({ type: 'worker', worker: fakeWorker({ phase: 'restarting' }) })
    fake.send({ type: 'worker', worker: fakeWorker() })
    await expect.poll(() => page.getByLabel('Model').first().inputValue()).toBe('demo')
    await page.context().close()
  })

  test('sessions belong to the chosen model; the choice survives leaving the page', {
    tags: 'night',
  }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: ['a session'], answer: 'Yes.' })
    const { page, url } = await open(fake)
    const models = ['demo', 'other', 'third'].map((id) => ({ id, state: 'ready' }))
    await page.route('**/v1/models', (route) => route.fulfill({ json: { data: models } }))
    const error = { message: 'the model is not ready', code: 'model_not_loaded' }
    await page.route('**/v1/sessions?model=other', (route) => route.fulfill({ status: 503, json: { error } }))
    await page.route('**/v1/sessions?model=third', (route) => route.fulfill({ json: { data: [] } }))
    await page.goto(`${url}/#/sessions`)
    await page.reload()
    await page.getByRole('link', { name: 'a session' }).waitFor()
    const choice = page.getByRole('combobox', { name: 'Model' })
    await choice.selectOption('other')
    await page.locator('main').getByText('the model is not ready').waitFor()
    expect(await page.getByRole('link', { name: 'a session' }).count()).toBe(0)
    await choice.selectOption('third')
    await page.getByText('No sessions').waitFor()
    await page.goto(`${url}/#/api`)
    await page.getByRole('heading', { name: 'API' }).waitFor()
    await page.goto(`${url}/#/sessions`)
    await page.getByText('No sessions').waitFor()
    expect(await choice.inputValue()).toBe('third')
    await page.context().close()
  })

  test('a single worker can be asked to translate', { tags: 'night' }, async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    const { page, url } = await open(fake)
    const asked: string[] = []
    await page.route('**/batch-translate', (route) => {
      asked.push(new URL(route.request().url()).pathname)
      const translation = { detected_source_lang: 'en', text: '雁', finish_reason: 'stop' }
      const event = JSON.stringify({ translations: [translation] })
      return route.fulfill({ contentType: 'text/event-stream', body: `data: ${event}\n\ndata: [DONE]\n\n` })
    })
    await page.goto(`${url}/#/translate`)
    await page.locator('select.target').selectOption('demo@wkr-0123456789')
    await page.getByRole('textbox', { name: 'Text' }).fill('goose')
    await page.getByRole('button', { name: 'Translate' }).click()
    await page.getByText('雁').waitFor()
    expect(asked).toEqual(['/api/workers/wkr-0123456789/proxy/translate/v1/batch-translate'])
    await page.context().close()
  })
})
