import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findChromium, launchChromium, openPage } from '../helpers/chromium.ts'
import { type RunningServer, serve } from '../helpers/cli.ts'
import { FakeServer, fakeLoad, fakeWorker } from '../web/fake-server.ts'

const executable = findChromium()
const reason = executable === null ? ' (skipped: no Chromium on PATH; set CHROMIUM_PATH)' : ''
const PAGES = [
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
]

/** Controls that a screen reader could not name, and ids that are there twice. */
const NAMELESS = `
  [...document.querySelectorAll('button, a, input, select, textarea, progress, meter, [role=img]')]
    .filter((one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim()) && !one.closest('li'))
    .map((one) => one.outerHTML)
    .concat([...document.querySelectorAll('[id]')].map(({ id }) => id).filter((id, i, ids) => ids.indexOf(id) < i))
`

const SOON = { timeout: 20_000 }

let browser: Browser
beforeAll(async () => {
  if (executable !== null) browser = await launchChromium(executable)
})
afterAll(async () => {
  await browser?.close()
})

describe.skipIf(executable === null)(`the dashboard of a real server${reason}`, () => {
  let server: RunningServer
  let page: Page
  let faults: string[]
  beforeAll(async () => {
    server = await serve(['--without-model', '--model-dir', 'models'])
    ;({ page, faults } = await openPage(browser))
    await page.goto(server.url)
  })
  afterAll(async () => {
    await page.context().close()
    await server.stop()
  })

  const card = () => page.locator('.worker').first()
  const fact = (name: string) =>
    card().locator('.worker-facts > div', { hasText: name }).locator('dd')
  const phase = (name: string) => card().locator('.badge', { hasText: name }).waitFor()

  test('a worker is started from the form; what is wrong is said beside its field', async () => {
    await page.getByRole('heading', { name: 'Welcome to Skein' }).waitFor()
    await page.getByRole('link', { name: 'Choose a model' }).click()
    await page.getByRole('heading', { name: 'demo' }).waitFor()
    await page.getByText('fits (').waitFor()
    await page.getByRole('link', { name: 'Load with options' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Model file').selectOption({ value: 'demo.pth' })
    await dialog.getByText('More', { exact: true }).click()
    await dialog.getByLabel('Batch size').fill('many')
    await dialog.getByRole('button', { name: 'Start' }).click()
    const field = dialog.locator('.field.wrong')
    await field.waitFor()
    expect(await field.locator('label').textContent()).toBe('Batch size')
    expect(await field.getByRole('alert').textContent()).toMatch(/max_batch_size/)
    await dialog.getByLabel('Batch size').fill('8')
    await dialog.getByRole('button', { name: 'Start' }).click()
    await dialog.waitFor({ state: 'detached' })
    await phase('ready')
    expect(await fact('Slots').textContent()).toBe('0 / 8')
  })

  test('its log is shown, and searched', async () => {
    await card().getByRole('link', { name: 'demo' }).click()
    const log = page.getByRole('region', { name: 'Log' })
    await log.locator('pre').waitFor()
    await log.getByRole('searchbox').fill('no line says this')
    await log.getByText('No lines').waitFor()
  })

  async function ask(question: string): Promise<string> {
    await page.getByLabel('Message').waitFor()
    const answers = page.locator('.exchange')
    const before = await answers.count()
    await page.getByLabel('Message').fill(question)
    await page.keyboard.press('Enter')
    const answer = answers.nth(before).locator('.answer[aria-busy=false]')
    await answer.waitFor()
    return (await answer.textContent()) ?? ''
  }

  test('a question is answered, with its figures', async () => {
    await card().getByRole('button', { name: 'Chat' }).click()
    await page.getByRole('button', { name: 'Settings' }).click()
    await page.getByLabel('Temperature', { exact: true }).fill('0')
    await page.getByRole('button', { name: 'Settings' }).click()
    expect(await ask('What is the capital of France?')).toContain('Paris')
    expect(await page.locator('.answer-figures').textContent()).toMatch(
      /TTFT [\d.]+ m?s · \d+ tokens/,
    )
  })

  test('a raw text goes on, and is shown while it is written', async () => {
    await page.getByRole('button', { name: 'Completion' }).click()
    await page.getByLabel('Prompt', { exact: true }).fill('Once upon a time')
    await page.getByRole('button', { name: 'Settings' }).click()
    await page.getByLabel('Max tokens').fill('300')
    await page.getByText('More settings').click()
    await page.getByLabel('Go on after the end of text').check()
    // Scripts of the page, which this file's types know nothing of, are text.
    await page.evaluate(`
      globalThis.lengths = new Set()
      new MutationObserver(() => {
        lengths.add(document.querySelector('.answer')?.textContent.length ?? 0)
      }).observe(document.body, { subtree: true, childList: true, characterData: true })
    `)
    await page.getByRole('button', { name: 'Continue the text' }).click()
    await page.locator('.completion-outcome', { hasText: '300 tokens' }).waitFor()
    expect(await page.evaluate('lengths.size')).toBeGreaterThan(5)
    await page.getByRole('button', { name: 'Append to the prompt' }).click()
    const prompt = await page.getByLabel('Prompt', { exact: true }).inputValue()
    expect(prompt.length).toBeGreaterThan(500)
    await page.getByRole('button', { name: 'Chat', exact: true }).click()
  })

  test('Stop stops, by mouse and by keyboard, and begins nothing', async () => {
    let numAsked = 0
    page.on('request', (request) => {
      if (request.method() === 'POST') numAsked++
    })
    await page.getByRole('button', { name: 'Completion' }).click()
    await page.getByLabel('Prompt', { exact: true }).fill('Once upon a time')
    await page.getByRole('button', { name: 'Settings' }).click()
    await page.getByLabel('Max tokens').fill('60000')
    const stop = page.getByRole('button', { name: 'Stop', exact: true })
    for (const press of [() => stop.click(), () => stop.press('Enter')]) {
      await page.getByRole('button', { name: 'Continue the text' }).click()
      await page.locator('.answer .writing').waitFor()
      await press()
      await page.locator('.answer[aria-busy=false]').waitFor()
      // The server has not counted its tokens.
      expect(await page.locator('.answer-figures').textContent()).toMatch(
        /^TTFT [\d.]+ m?s · stopped$/,
      )
    }
    expect(numAsked).toBe(2)
    await page.getByRole('button', { name: 'Chat', exact: true }).click()
  })

  test('regenerate, edit, rewind and fork make branches of one tree', async () => {
    await ask('Tell me a story.')
    const first = page.locator('.exchange').first()
    await first.getByRole('button', { name: 'Edit' }).click()
    await first.getByLabel('Edit').fill('What is the capital of Japan?')
    await first.getByRole('button', { name: 'Send as a new branch' }).click()
    await page.locator('.answer[aria-busy=false]', { hasText: 'Tokyo' }).waitFor()
    await page.getByText('2/2').waitFor()
    await page.getByRole('button', { name: 'Earlier branch' }).click()
    await page.locator('.answer', { hasText: 'Paris' }).waitFor()
    await first.getByRole('button', { name: 'Rewind to here' }).click()
    await page.getByText('the next message begins a new branch').waitFor()
    expect(await page.locator('.exchange').count()).toBe(1)
    await first.getByRole('button', { name: 'Fork here' }).click()
    const second = page.locator('.pane').nth(1)
    await second.locator('.answer', { hasText: 'Paris' }).waitFor()
    await page.getByLabel('Message').fill('What is the capital of Japan?')
    await page.keyboard.press('Enter')
    for (const pane of [page.locator('.pane').nth(0), second]) {
      await pane.locator('.answer[aria-busy=false]', { hasText: 'Tokyo' }).waitFor()
      // The first turn was not read again.
      expect(await pane.locator('.answer-figures').last().textContent()).toMatch(/ [1-9]\d* cached/)
    }
    await second.getByRole('button', { name: 'Close' }).click()
  })

  test('tokens with their probabilities', async () => {
    await page.getByRole('button', { name: 'Show tokens and probabilities' }).click()
    await ask('What is the capital of France?')
    const token = page.locator('.token', { hasText: 'Paris' })
    await token.focus()
    await page.locator('.alternatives .drawn', { hasText: 'Paris' }).waitFor()
    expect(await page.locator('.alternatives li').count()).toBe(5)
    await page.keyboard.press('ArrowLeft')
    await page.locator('.alternatives .drawn', { hasText: 'is' }).waitFor()
  })

  test('after a reload every word of every branch is there, and the conversation goes on', async () => {
    const first = page.locator('.exchange').first()
    const before = await page.locator('.exchange').count()
    await page.getByRole('button', { name: 'Show tokens and probabilities' }).click()
    await page.reload()
    await expect.poll(() => page.locator('.exchange').count()).toBe(before)
    await first.locator('.answer', { hasText: 'Paris' }).waitFor()
    await first.getByRole('button', { name: 'Later branch' }).click()
    await first.locator('.question', { hasText: 'capital of Japan?' }).waitFor()
    await first.getByRole('button', { name: 'Earlier branch' }).click()
    await ask('What is the capital of Japan?')
    const last = page.locator('.exchange').last()
    await last.locator('.answer', { hasText: 'Tokyo' }).waitFor()
    // Nothing was read again.
    expect(await last.locator('.answer-figures').textContent()).toMatch(/ [1-9]\d* cached/)
  })

  test('a stopped answer is kept too', async () => {
    await page.getByRole('button', { name: 'Settings' }).click()
    await page.getByText('More settings').click()
    await page.getByLabel('Go on after the end of text').check()
    // What would end it by itself is never drawn.
    const reply = await fetch(`${server.url}/tokenize`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: '\n\nUser:System' }),
    })
    const { tokens } = (await reply.json()) as { tokens: number[] } // docs/api.md
    await page.getByLabel('Banned tokens').fill(tokens.join(' '))
    await page.getByLabel('Max tokens').fill('60000')
    await page.getByLabel('Message').fill('Tell me a story.')
    await page.keyboard.press('Enter')
    await page.locator('.exchange').last().locator('.writing .text').waitFor()
    await page.getByRole('button', { name: 'Stop', exact: true }).click()
    const last = page.locator('.exchange').last()
    await last.locator('.answer-figures', { hasText: 'stopped' }).waitFor()
    await expect.poll(() => last.getByRole('button', { name: /link/ }).count()).toBe(1)
    const said = await last.locator('.answer .prose').textContent()
    await page.getByRole('button', { name: 'Back to the defaults' }).click()
    await page.reload()
    await expect.poll(() => last.locator('.answer .prose').textContent()).toBe(said)
  })

  test('conversations have titles, are renamed, found, shared as a copy, and deleted together', async () => {
    const list = page.getByRole('navigation', { name: 'Conversations' })
    const items = list.getByRole('listitem')
    await page.getByRole('button', { name: 'New chat' }).click()
    await ask('What do cats eat?')
    const own = items.filter({ hasText: 'What do cats eat?' })
    await own.hover()
    await own.getByRole('button', { name: /^More about/ }).click()
    await own.getByRole('button', { name: 'Rename' }).click()
    await list.getByLabel('Name').fill('Cats #pets')
    await page.keyboard.press('Enter')
    const link = page.locator('.exchange').getByRole('button', { name: /link/ })
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
    await link.click()
    const shared: unknown = await page.evaluate('navigator.clipboard.readText()')
    expect(shared).toMatch(/#\/playground\/demo\/play-[0-9a-f]{16}\/1$/)
    await list.getByRole('searchbox').fill('capital')
    await expect.poll(() => items.filter({ hasText: 'Cats' }).count()).toBe(0)
    await list.getByRole('searchbox').fill('cats')
    await expect.poll(() => items.count()).toBe(1)
    await list.getByRole('searchbox').fill('')
    // Words with # in names are tags.
    await list.getByRole('button', { name: '#pets', exact: true }).click()
    await expect.poll(() => items.count()).toBe(1)
    await list.getByRole('button', { name: '#pets', exact: true }).click()

    const before = await items.count()
    const words = page.waitForResponse('**/transcript?*')
    await page.goto(String(shared))
    await words
    await page.locator('.panes').waitFor()
    await ask('And dogs?')
    await expect.poll(() => items.count()).toBe(before + 1)
    expect(await page.locator('.exchange').count()).toBe(2)
    await items.getByRole('link', { name: 'Cats #pets', exact: true }).click()
    await expect.poll(() => page.locator('.exchange').count()).toBe(1)

    await list.getByRole('button', { name: 'Select' }).click()
    for (const name of ['Cats #pets', 'What do cats eat?'])
      await items.getByLabel(name, { exact: true }).check()
    await list.getByRole('button', { name: 'Delete 2' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await expect.poll(() => items.count()).toBe(before - 1)
    await page.getByRole('heading', { name: 'What shall we talk about?' }).waitFor()
  })

  test('a killed worker is seen to die, and to come back', async () => {
    await page.getByRole('link', { name: 'Workers' }).click()
    const pid = Number(await fact('Process').textContent())
    process.kill(pid, 'SIGKILL')
    await expect
      .poll(async () => [await fact('Process').textContent(), await card().getAttribute('class')], {
        timeout: 20_000,
      })
      .toEqual([expect.not.stringMatching(`^(${pid}|–)$`), 'worker ready'])
    expect(await fact('Restarts').textContent()).toBe('1')
    await page.getByRole('link', { name: 'Chat' }).click()
    // Its state was on disk, or its texts are sent again.
    expect(await ask('What is the capital of Japan?')).toContain('Tokyo')
  })

  test('sessions are listed, opened and deleted', async () => {
    await page.getByRole('link', { name: 'Sessions' }).click()
    const rows = page.locator('.list tbody tr')
    await rows.first().getByRole('link').click()
    await page.getByRole('button', { name: 'Fork' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Name of the new session').fill('a fork')
    await dialog.getByRole('button', { name: 'Fork' }).click()
    await rows.getByRole('link', { name: 'a fork' }).click()
    const saved = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Export' }).click()
    expect((await saved).suggestedFilename()).toMatch(/^a_fork-\d+\.state$/)
    await page.getByRole('button', { name: 'Import' }).click()
    await dialog.getByLabel('File').setInputFiles(await (await saved).path())
    await dialog.getByLabel('Name of the new session').fill('imported')
    await dialog.getByRole('button', { name: 'Import' }).click()
    await rows.getByRole('link', { name: 'imported' }).waitFor()
    await page.getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await rows.getByRole('link', { name: 'a fork' }).waitFor({ state: 'detached' })
  })

  test('a text is translated by paragraphs', async () => {
    await page.getByRole('link', { name: 'Translate' }).click()
    await page.getByLabel('Text', { exact: true }).fill('The cat is red.\n\nI like apples.')
    await page.getByRole('button', { name: 'Translate' }).click()
    await page.getByText('2 of 2 paragraphs').waitFor()
    expect(await page.locator('.translation li').count()).toBe(2)
  })

  test('a batch fills its cells, and a row can be read whole', async () => {
    await page.getByRole('link', { name: 'Batch' }).click()
    await page.getByLabel('a row for each line').check()
    await page.getByLabel('Prompt').fill('Once upon a time\nThe cat')
    await page.getByRole('button', { name: 'Start 2 rows' }).click()
    await page.getByText(/\d+ tokens in [\d.]+ s: \d+/).waitFor()
    await page.getByRole('button', { name: 'Row 2' }).click()
    const whole = page.getByRole('dialog').locator('.row-text')
    expect((await whole.textContent())!.length).toBeGreaterThan('The cat'.length)
    await page.getByRole('button', { name: 'Done' }).click()
  })

  test('what was asked of the server is listed, without a word of it', async () => {
    await page.getByRole('link', { name: 'Requests' }).click()
    const row = page.locator('tr', { hasText: '/v1/batch/completions' })
    await row.getByText('200').waitFor()
    expect(await row.textContent()).toMatch(/demoeveryone200[1-9]\d*[1-9]\d*/)
    const kept = await (await fetch(`${server.url}/api/requests`)).text()
    expect(kept).not.toMatch(/Once upon|capital|play-/)
    await page.getByRole('searchbox').fill('nothing')
    await page.getByText('No requests').waitFor()
  })

  test('the overview has drawn what happened', async () => {
    await page.getByRole('link', { name: 'Overview' }).click()
    await page.locator('.chart canvas').first().waitFor()
    await page.getByRole('img', { name: /Tokens per second: generated / }).waitFor()
  })

  test('home says what runs, and where to go on', async () => {
    await page.getByRole('link', { name: 'Home' }).click()
    await page.getByRole('heading', { name: 'Home' }).waitFor()
    const recent = page.locator('.card', { hasText: 'Go on with' })
    await recent.getByText('What is the capital of France?').first().waitFor()
  })

  test('/docs leads to the routes, and a route is tried with its example', async () => {
    const { page: docs, faults: wrong } = await openPage(browser)
    await docs.goto(`${server.url}/docs`)
    await docs.getByRole('searchbox').fill('/v1/chat/completions')
    await docs.locator('.routes summary').first().click()
    const form = docs.locator('.try')
    await form.getByLabel('Example', { exact: true }).selectOption('As a stream')
    await form.getByRole('button', { name: 'Send' }).click()
    const reply = form.locator('figure', { hasText: /^Reply(?! of)/ })
    await expect.poll(() => reply.textContent(), SOON).toMatch(/Paris[\s\S]*data: \[DONE\]/)
    expect(wrong).toEqual([])
    await docs.context().close()
  })

  test('a model is unloaded and loaded again from its card', async () => {
    await page.getByRole('link', { name: 'Models', exact: true }).click()
    const model = page.locator('.model', { hasText: 'demo' })
    await model.getByRole('button', { name: 'Unload' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Unload' }).click()
    await model.getByRole('button', { name: 'Load', exact: true }).click({ timeout: 15_000 })
    await model.locator('.badge', { hasText: 'loaded' }).waitFor()
  })

  test('a model that the hub does not have, or no name at all, is said beside the field', async () => {
    await page.getByLabel('Another model').fill('not a name')
    await page.getByRole('button', { name: 'Fetch', exact: true }).click()
    await page.locator('.field.wrong').getByText('is no model name').waitFor()
  })

  test('the worker is stopped, after a question', async () => {
    await page.getByRole('link', { name: 'Workers' }).click()
    await card().getByRole('button', { name: 'Stop' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Stop' }).click()
    await phase('stopped')
    for (let left = await page.locator('.worker').count(); left > 0; left--) {
      await card().getByRole('button', { name: 'Forget' }).click()
      await expect.poll(() => page.locator('.worker').count()).toBe(left - 1)
    }
    await page.getByText('No workers').waitFor()
  })

  test('through all of it: no error, nothing refused by the policy, nothing from elsewhere', () => {
    expect(faults).toEqual([])
  })
})

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

/** What axe-core says against a page: rules and the elements that break them. */
async function violations(page: Page): Promise<unknown> {
  await page.evaluate(`if (!globalThis.axe) { ${AXE} }`)
  return page.evaluate(`
    axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) =>
      violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html.slice(0, 160))]),
    )
  `)
}

const PAYLOADS = [
  '<img src=x onerror="window.harmed=1">',
  '<script>window.harmed=1</script>',
  '"><svg onload=window.harmed=1>',
  "javascript:window.harmed=1//'",
  '\u202e</title><iframe srcdoc="<script>parent.harmed=1</script>">',
]

describe.skipIf(executable === null)(`the dashboard of a server that is not well${reason}`, () => {
  const opened: FakeServer[] = []
  async function open(fake: FakeServer, options = {}) {
    if (!fake.app.server.listening) await fake.app.listen({ port: 0, host: '127.0.0.1' })
    opened.push(fake)
    const url = fake.app.listeningOrigin
    const watched = await openPage(browser, options)
    await watched.page.goto(url)
    return { ...watched, url }
  }
  afterAll(async () => {
    for (const fake of opened) await fake.close()
  })

  test('markup in names, reasons, logs, sessions and answers stays text', async () => {
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
      const shown = async () =>
        ((await page.locator('body').textContent()) ?? '').split(PAYLOADS[0]!).length - 1
      await expect.poll(shown, { timeout: 10_000 }).toBeGreaterThanOrEqual(times)
      expect(await page.locator('main img, main iframe, main script, a[href^=java]').count()).toBe(
        0,
      )
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

  test('a worker that loads shows how far it is, and one that fails shows why', async () => {
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

  test('a thought is folded, code is set apart, and an answer that breaks off says why', async () => {
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

  test('a key is asked for, kept by the tab, and a wrong one is asked for again', async () => {
    const fake = new FakeServer({ key: 'sk-right', workers: [fakeWorker()] })
    const { page, faults } = await open(fake)
    const dialog = page.getByRole('dialog')
    // Whoever is asked can write at once.
    await expect.poll(() => page.evaluate('document.activeElement?.localName')).toBe('input')
    await page.keyboard.type('sk-wrong')
    await page.keyboard.press('Enter')
    await dialog.getByText('does not know this key').waitFor()
    // The same once more is another try.
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
    [404, 'This address is one worker’s own'],
  ] as const)(
    'where the server may not be watched (%s), models can be used',
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

  test('a key that is revoked while it may not watch is asked for once, not every ten seconds', async () => {
    const fake = new FakeServer({ refuse: 403 })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    const { page, faults } = await open(fake)
    await page.clock.install()
    await page.reload()
    await page.getByText('This key may use models, but not watch').waitFor()
    const error = { message: 'the API key is not one of this server', code: 'invalid_api_key' }
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

  test('a stream that breaks is said, and found again', async () => {
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

  test('it opens without its server, by files that the browser keeps', async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    const { page, faults } = await open(fake, { serviceWorkers: 'allow' })
    await page.getByText('Live').waitFor()
    // What the page began with is kept when the service worker looks after it.
    await page.evaluate('navigator.serviceWorker.ready.then(() => 0)')
    await fake.close()
    await page.reload()
    await page.getByText(/Connection lost/).waitFor()
    await page.getByRole('link', { name: 'Chat' }).waitFor()
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('a page that could not be fetched is fetched when the server is back', async () => {
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

  test('sessions of a model that still loads are fetched when it is ready', async () => {
    const fake = new FakeServer({ workers: [fakeWorker({ phase: 'loading' })] })
    fake.serveModel('demo', { sessions: ['a session'], answer: 'Yes.' })
    const { page, url } = await open(fake)
    await page.route('**/v1/models', (route) =>
      route.fulfill({ json: { data: [{ id: 'demo', state: 'loading' }] } }),
    )
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

  test('sessions are those of the model that is chosen, or none; the choice outlives the page', async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: ['a session'], answer: 'Yes.' })
    const { page, url } = await open(fake)
    const models = ['demo', 'other', 'third'].map((id) => ({ id, state: 'ready' }))
    await page.route('**/v1/models', (route) => route.fulfill({ json: { data: models } }))
    const error = { message: 'the model is not ready', code: 'model_not_loaded' }
    await page.route('**/v1/sessions?model=other', (route) =>
      route.fulfill({ status: 503, json: { error } }),
    )
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

  test('one worker can be asked to translate', async () => {
    const fake = new FakeServer({ workers: [fakeWorker()] })
    fake.serveModel('demo', { sessions: [], answer: 'Yes.' })
    const { page, url } = await open(fake)
    const asked: string[] = []
    await page.route('**/batch-translate', (route) => {
      asked.push(new URL(route.request().url()).pathname)
      const translation = { detected_source_lang: 'en', text: '雁', finish_reason: 'stop' }
      return route.fulfill({ json: { translations: [translation] } })
    })
    await page.goto(`${url}/#/translate`)
    await page.locator('select.target').selectOption('demo@wkr-0123456789')
    await page.getByRole('textbox', { name: 'Text' }).fill('goose')
    await page.getByRole('button', { name: 'Translate' }).click()
    await page.getByText('雁').waitFor()
    expect(asked).toEqual(['/api/workers/wkr-0123456789/proxy/translate/v1/batch-translate'])
    await page.context().close()
  })

  test('every page fits a phone, in both languages', async () => {
    const load = (at: number) => ({ 'wkr-0123456789': fakeLoad(at) })
    const fake = new FakeServer({ workers: [fakeWorker()], load })
    fake.serveModel('demo', { sessions: ['a session'], answer: 'Yes.' })
    for (const locale of ['en-GB', 'zh-CN']) {
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

  test.each(['light', 'dark'] as const)(
    'axe finds nothing wrong with any page, in %s',
    async (colorScheme) => {
      const load = (at: number) => ({ 'wkr-0123456789': fakeLoad(at) })
      const fake = new FakeServer({ workers: [fakeWorker()], load })
      const answer =
        '# Title\n\n- a\n- b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\nf()\n```\n\n$a^2$ [x](https://example.org)'
      fake.serveModel('demo', { sessions: ['a session'], answer })
      for (const viewport of [
        { width: 1280, height: 800 },
        { width: 390, height: 844 },
      ]) {
        const { page, faults, url } = await open(fake, { viewport, colorScheme })
        for (const name of [...PAGES, 'sessions/a%20session', 'playground/demo/a%20session']) {
          await page.goto(`${url}/#/${name}`)
          await page.locator('main h1').waitFor({ state: 'attached' })
          await page.locator('.spinner').waitFor({ state: 'detached' })
          if (name.startsWith('playground/')) {
            await page.locator('.prose math').waitFor()
            await page.getByRole('button', { name: 'Settings' }).click()
          }
          expect(await violations(page)).toEqual([])
        }
        expect(faults).toEqual([])
        await page.context().close()
      }
    },
  )

  test('of many sessions, the one that is opened is in view and has its name in one line', async () => {
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

  test('by keyboard alone: the first key leads past the navigation, and focus is seen', async () => {
    const { page } = await open(new FakeServer({ workers: [fakeWorker()] }))
    await page.getByText('Live').waitFor()
    await page.keyboard.press('Tab')
    expect(await page.evaluate('document.activeElement.textContent')).toBe('Skip to the content')
    expect(await page.evaluate('getComputedStyle(document.activeElement).outlineStyle')).toBe(
      'solid',
    )
    await page.keyboard.press('Enter')
    await page.keyboard.press('Tab')
    expect(await page.evaluate("document.activeElement.closest('main') !== null")).toBe(true)
    await page.context().close()
  })
})
