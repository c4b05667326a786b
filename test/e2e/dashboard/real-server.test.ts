/** The dashboard of a real server with the demo model, from the first worker to the last, in this order. */
import type { Page } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openPage } from '../../helpers/chromium.ts'
import { type RunningServer, serve } from '../../helpers/cli.ts'
import { postJson } from '../../helpers/post-json.ts'
import { describeInBrowser } from './kit.ts'

const SOON = { timeout: 20_000 }

describeInBrowser('the dashboard of a real server', (browser) => {
  let server: RunningServer
  let page: Page
  let faults: string[]
  beforeAll(async () => {
    server = await serve(['--without-model', '--model-dir', 'models'])
    ;({ page, faults } = await openPage(browser()))
    await page.goto(server.url)
  })
  afterAll(async () => {
    await page.context().close()
    await server.stop()
  })

  const card = () => page.locator('.worker').first()
  const fact = (name: string) => card().locator('.worker-facts > div', { hasText: name }).locator('dd')
  const phase = (name: string) => card().locator('.badge', { hasText: name }).waitFor()

  test('a worker is started from the form; errors are shown beside their field', async () => {
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

  test('its log is shown, and can be searched', async () => {
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
    expect(await page.locator('.answer-figures').textContent()).toMatch(/TTFT [\d.]+ m?s · \d+ tokens/)
  })

  test('a raw text is continued, and shown while it is written', async () => {
    await page.getByRole('button', { name: 'Completion' }).click()
    await page.getByLabel('Prompt', { exact: true }).fill('Once upon a time')
    await page.getByRole('button', { name: 'Settings' }).click()
    await page.getByLabel('Max tokens').fill('300')
    await page.getByText('More settings').click()
    await page.getByLabel('Continue after the end of text').check()
    // Scripts for the page are text, because this file does not know the page's types.
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

  test('Stop stops, by mouse and by keyboard, and starts nothing', async () => {
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
      expect(await page.locator('.answer-figures').textContent()).toMatch(/^TTFT [\d.]+ m?s · stopped$/)
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
    await page.getByRole('button', { name: 'Previous branch' }).click()
    await page.locator('.answer', { hasText: 'Paris' }).waitFor()
    await first.getByRole('button', { name: 'Rewind to here' }).click()
    await page.getByText('the next message starts a new branch').waitFor()
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

  test('after a reload every word of every branch is there, and the conversation continues', async () => {
    const first = page.locator('.exchange').first()
    const before = await page.locator('.exchange').count()
    await page.getByRole('button', { name: 'Show tokens and probabilities' }).click()
    await page.reload()
    await expect.poll(() => page.locator('.exchange').count(), SOON).toBe(before)
    await first.locator('.answer', { hasText: 'Paris' }).waitFor()
    await first.getByRole('button', { name: 'Next branch' }).click()
    await first.locator('.question', { hasText: 'capital of Japan?' }).waitFor()
    await first.getByRole('button', { name: 'Previous branch' }).click()
    await ask('What is the capital of Japan?')
    const last = page.locator('.exchange').last()
    await last.locator('.answer', { hasText: 'Tokyo' }).waitFor()
    // Nothing was read again.
    expect(await last.locator('.answer-figures').textContent()).toMatch(/ [1-9]\d* cached/)
  })

  test('a stopped answer is also kept', async () => {
    await page.getByRole('button', { name: 'Settings' }).click()
    await page.getByText('More settings').click()
    await page.getByLabel('Continue after the end of text').check()
    // The stop token is never drawn.
    const reply = await postJson(`${server.url}/tokenize`, { prompt: '\n\nUser:System' })
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

  test('conversations have titles, and are renamed, found, shared as a copy, and deleted together', async () => {
    const list = page.getByRole('navigation', { name: 'Conversations' })
    const items = list.getByRole('listitem')
    await page.getByRole('button', { name: 'New chat' }).click()
    await ask('What do cats eat?')
    const own = items.filter({ hasText: 'What do cats eat?' })
    await own.hover()
    await own.getByRole('button', { name: /^More actions for/ }).click()
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
    // In a folder it is listed under no day; then it leaves the folder again.
    const cats = items.filter({ hasText: 'Cats #pets' })
    const putInto = async (folder: string) => {
      await cats.hover()
      await cats.getByRole('button', { name: /^More actions for/ }).click()
      await cats.getByRole('button', { name: 'Put into a folder' }).click()
      await list.getByLabel('Folder').fill(folder)
      await page.keyboard.press('Enter')
    }
    const folder = list.locator('details.folder', { hasText: 'Animals' })
    await putInto('Animals')
    await folder.getByText('Cats #pets').waitFor()
    await folder.locator('summary').click()
    await folder.getByText('Cats #pets').waitFor({ state: 'hidden' })
    await folder.locator('summary').click()
    await putInto('')
    await folder.waitFor({ state: 'detached' })

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
    for (const name of ['Cats #pets', 'What do cats eat?']) await items.getByLabel(name, { exact: true }).check()
    await list.getByRole('button', { name: 'Delete 2' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await expect.poll(() => items.count()).toBe(before - 1)
    await page.getByRole('heading', { name: 'What shall we talk about?' }).waitFor()
  })

  test('a killed worker is shown as dead, and then as restarted', async () => {
    await page.getByRole('link', { name: 'Workers' }).click()
    const pid = Number(await fact('Process').textContent())
    process.kill(pid, 'SIGKILL')
    await expect
      .poll(async () => [await fact('Process').textContent(), await card().getAttribute('class')], { timeout: 20_000 })
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

  test('a text is translated paragraph by paragraph', async () => {
    await page.getByRole('link', { name: 'Translate' }).click()
    await page.getByLabel('Text', { exact: true }).fill('The cat is red.\n\nI like apples.')
    await page.getByRole('button', { name: 'Translate' }).click()
    await page.getByText('2 of 2 paragraphs').waitFor()
    expect(await page.locator('.side-by-side li').count()).toBe(2)
    await page.getByRole('button', { name: 'Grid' }).click()
    await page.getByRole('button', { name: 'Paragraph 2' }).click()
    expect(await page.getByRole('dialog').textContent()).toContain('I like apples.')
    await page.getByRole('button', { name: 'Done' }).click()
  })

  test('with many paragraphs each is a cell, and all are there at the end', { tags: 'night' }, async () => {
    const sentences = Array.from({ length: 60 }, (_, i) => `The cat has ${i} apples.`)
    await page.getByLabel('Text', { exact: true }).fill(sentences.join('\n'))
    await page.getByRole('button', { name: 'Translate' }).click()
    await page.locator('.cells li').nth(59).waitFor()
    await page.getByText('60 of 60 paragraphs').waitFor()
    const texts = await page.locator('.cells li').allTextContents()
    expect(texts.filter((text) => text.trim() === '')).toEqual([])
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

  test('requests to the server are listed, without their content', async () => {
    await page.getByRole('link', { name: 'Requests' }).click()
    const row = page.locator('tr', { hasText: '/v1/batch/completions' })
    await row.getByText('200').waitFor()
    expect(await row.textContent()).toMatch(/demoeveryone200[1-9]\d*[1-9]\d*/)
    const kept = await (await fetch(`${server.url}/api/requests`)).text()
    expect(kept).not.toMatch(/Once upon|capital|play-/)
    await page.getByRole('searchbox').fill('nothing')
    await page.getByText('No requests').waitFor()
  })

  test('the overview shows the activity so far', async () => {
    await page.getByRole('link', { name: 'Overview' }).click()
    await page.locator('.chart canvas').first().waitFor()
    await page.getByRole('img', { name: /Tokens per second: generated / }).waitFor()
  })

  test('home shows what runs, and where to continue', async () => {
    await page.getByRole('link', { name: 'Home' }).click()
    await page.getByRole('heading', { name: 'Home' }).waitFor()
    const recent = page.locator('.card', { has: page.getByRole('heading', { name: 'Continue', exact: true }) })
    await recent.getByText('What is the capital of France?').first().waitFor()
  })

  test('/docs lists the routes, and a route can be tried with its example', async () => {
    const { page: docs, faults: wrong } = await openPage(browser())
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

  test('a model that the hub does not have, or an empty name, is reported beside the field', async () => {
    await page.getByLabel('Search the hub').fill('not a name')
    await page.getByRole('button', { name: 'Fetch', exact: true }).click()
    await page.locator('.field.wrong').getByText('is no model name').waitFor()
  })

  test('the worker is stopped, after a confirmation', async () => {
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

  test('throughout: no error, no violation of the content policy, no request to other servers', () => {
    expect(faults).toEqual([])
  })
})
