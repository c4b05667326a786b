/** The playground with scripted replies: cases that a real server produces too fast, too slowly or too rarely. */
import type { Browser, Locator, Page, Route } from 'playwright-core'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { findChromium, launchChromium, openPage } from '../helpers/chromium.ts'
import { FakeServer, fakeWorker } from '../web/fake-server.ts'

const executable = findChromium()
const reason = executable === null ? ' (skipped: no Chromium on PATH; set CHROMIUM_PATH)' : ''

interface Asked {
  readonly messages: readonly { readonly role: string; readonly content: string }[]
}

describe.skipIf(executable === null)(`the playground${reason}`, () => {
  const fake = new FakeServer({ workers: [fakeWorker()] })
  fake.serveModel('demo', { sessions: [], answer: '' })
  let browser: Browser
  let page: Page
  let faults: string[]
  beforeAll(async () => {
    browser = await launchChromium(executable!)
    await fake.app.listen({ port: 0, host: '127.0.0.1' })
  })
  afterAll(async () => {
    await browser.close()
    await fake.close()
  })
  beforeEach(async () => {
    ;({ page, faults } = await openPage(browser, { viewport: { width: 390, height: 844 } }))
    await page.goto(`${fake.app.listeningOrigin}/#/playground`)
    return async () => {
      expect(faults).toEqual([])
      await page.context().close()
    }
  })

  /** `reply` gets each request for an answer, and the requests are recorded. */
  async function answerBy(reply: (route: Route) => Promise<void>): Promise<readonly Asked[]> {
    const asked: Asked[] = []
    await page.route('**/v1/chat/completions', async (route) => {
      asked.push(route.request().postDataJSON())
      await reply(route)
    })
    return asked
  }

  async function send(text: string): Promise<void> {
    await page.getByLabel('Message').fill(text)
    await page.keyboard.press('Enter')
  }

  const answered = (count: number) => expect.poll(() => page.locator('.answer[aria-busy=false]').count()).toBe(count)

  const fromEnd = (place: Locator) =>
    place.evaluate(({ scrollHeight, scrollTop, clientHeight }) => Math.round(scrollHeight - scrollTop - clientHeight))

  test('on a phone the conversation scrolls along, and a sent message is in view', {
    tags: 'night',
  }, async () => {
    await answerBy((route) => route.fulfill(streamed('A line of an answer.\n\n'.repeat(4))))
    const list = page.locator('.exchanges')
    for (let n = 1; n <= 6; n++) {
      await send(`Question ${n}`)
      await answered(n)
      await expect.poll(() => fromEnd(list)).toBeLessThan(2)
    }
    await list.hover()
    await page.mouse.wheel(0, -400)
    await expect.poll(() => fromEnd(list)).toBeGreaterThan(100)
    await send('Question 7')
    await answered(7)
    await expect.poll(() => fromEnd(list)).toBeLessThan(2)
  })

  test('on a phone the list of conversations is closed again: by its button, beside it, by Escape', async () => {
    const list = page.getByRole('navigation', { name: 'Conversations' })
    const close = [
      () => list.getByRole('button', { name: 'Close' }).click(),
      () => page.mouse.click(380, 400),
      async () => {
        await list.getByRole('button', { name: 'New chat' }).focus()
        await page.keyboard.press('Escape')
      },
    ]
    for (const way of close) {
      await page.getByRole('button', { name: 'Conversations' }).click()
      await list.waitFor()
      await way()
      await list.waitFor({ state: 'detached' })
    }
  })

  test('a raw completion fits a phone, its button too', async () => {
    await page.getByRole('button', { name: 'Completion' }).click()
    const button = page.getByRole('button', { name: 'Continue the text' })
    expect(await button.evaluate(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)).toBe(0)
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(390)
  })

  test('a number can be typed with its point and its sign', async () => {
    const asked = await answerBy((route) => route.fulfill(streamed('Yes.')))
    await page.getByRole('button', { name: 'Settings' }).click()
    const typed = { Temperature: '0.75', 'Top p': '0.05', Presence: '-0.5', 'Max tokens': '100' }
    for (const [name, text] of Object.entries(typed)) {
      const field = page.getByLabel(name, { exact: true })
      await field.focus()
      await page.keyboard.type(text)
      expect(await field.inputValue()).toBe(text)
    }
    await send('Well?')
    await answered(1)
    const numbers = { temperature: 0.75, top_p: 0.05, presence_penalty: -0.5, max_tokens: 100 }
    expect(asked[0]).toMatchObject(numbers)
    await page.getByRole('button', { name: 'Back to the defaults' }).click()
    expect(await page.getByLabel('Temperature', { exact: true }).inputValue()).toBe('')
  })

  test('an edited message waits for the running answer; Enter sends it, Escape discards it', async () => {
    const held: Route[] = []
    const asked = await answerBy(async (route) => {
      if (asked.at(-1)!.messages.at(-1)!.content === 'Second') held.push(route)
      else await route.fulfill(streamed('Yes.'))
    })
    await send('First')
    await answered(1)
    const first = page.locator('.exchange').first()
    const draft = first.getByLabel('Edit').and(page.locator('textarea'))
    const submit = first.getByRole('button', { name: 'Send as a new branch' })
    await first.getByRole('button', { name: 'Edit' }).click()
    await draft.press('Escape')
    await draft.waitFor({ state: 'detached' })
    await first.getByRole('button', { name: 'Edit' }).click()
    await draft.fill('  ')
    expect(await submit.isDisabled()).toBe(true)
    await draft.press('Enter')
    await draft.fill('Another')
    await send('Second')
    await expect.poll(() => held.length).toBe(1)
    // The user is still where they typed.
    expect(await page.evaluate('document.activeElement.ariaLabel')).toBe('Message')
    await expect.poll(() => submit.isDisabled()).toBe(true)
    await draft.press('Enter')
    expect(await draft.inputValue()).toBe('Another')
    await held[0]!.fulfill(streamed('Yes.'))
    await answered(2)
    await draft.press('Enter')
    await draft.waitFor({ state: 'detached' })
    await first.getByText('Another').waitFor()
    const questions = asked.map(({ messages }) => messages.at(-1)!.content)
    expect(questions).toEqual(['First', 'Second', 'Another'])
  })

  test('a question whose answer failed before its first word is not in the next prompt', {
    tags: 'night',
  }, async () => {
    const asked = await answerBy((route) =>
      asked.length === 2
        ? route.fulfill({ status: 503, json: { error: { message: 'busy', code: 'queue_full' } } })
        : route.fulfill(streamed('Yes.')),
    )
    for (const [i, question] of ['First', 'Second', 'Third'].entries()) {
      await send(question)
      await answered(i + 1)
    }
    expect(asked[2]!.messages).toEqual([
      { role: 'user', content: 'First' },
      { role: 'assistant', content: 'Yes.' },
      { role: 'user', content: 'Third' },
    ])
  })

  test('after opening it from a worker, another model can be chosen at once', { tags: 'night' }, async () => {
    const target = page.locator('select.target')
    await target.selectOption('demo@wkr-0123456789')
    await page.goto(`${fake.app.listeningOrigin}/#/playground/wkr-0123456789`)
    await expect.poll(() => page.evaluate('location.hash')).toBe('#/playground')
    await target.selectOption('demo')
    await page.getByRole('region', { name: 'demo', exact: true }).waitFor()
    expect(await target.inputValue()).toBe('demo')
  })

  test('a tool call is shown with its arguments, as they arrive', async () => {
    const piece = (called: object) => ({
      choices: [{ index: 0, delta: { tool_calls: [{ index: 0, function: called }] }, finish_reason: null }],
    })
    const chunks = [
      piece({ name: 'weather', arguments: '{"city":' }),
      piece({ arguments: '"Paris"}' }),
      { choices: [{ index: 0, delta: {}, finish_reason: 'tool_calls' }] },
    ]
    const lines = [...chunks.map((chunk) => JSON.stringify(chunk)), '[DONE]']
    const body = lines.map((line) => `data: ${line}\n\n`).join('')
    await answerBy((route) => route.fulfill({ contentType: 'text/event-stream', body }))
    await send('Weather?')
    await answered(1)
    const call = page.locator('.tool-call')
    await call.getByText('Calls weather').waitFor()
    expect(await call.locator('pre').textContent()).toBe('{\n  "city": "Paris"\n}')
    expect(await page.getByText('An empty answer').count()).toBe(0)
  })

  test('the first visit loads little', { tags: 'night' }, async () => {
    const loaded: Promise<number>[] = []
    const { page: fresh } = await openPage(browser)
    fresh.on('response', (response) => {
      if (/\/assets\/|\/$/.test(new URL(response.url()).pathname)) {
        loaded.push(
          response
            .request()
            .sizes()
            .then((sizes) => sizes.responseBodySize),
        )
      }
    })
    await fresh.goto(fake.app.listeningOrigin)
    await fresh.getByText('Live').waitFor()
    const bytes = (await Promise.all(loaded)).reduce((sum, size) => sum + size, 0)
    expect(bytes).toBeGreaterThan(50_000)
    expect(bytes).toBeLessThan(150_000)
    await fresh.context().close()
  })

  async function openSession(transcript: object): Promise<void> {
    await page.route('**/v1/sessions/abc?*', (route) => route.fulfill({ json: SESSION }))
    await page.route('**/v1/sessions/abc/transcript?*', (route) =>
      route.fulfill({ json: { title: '', skipped_tokens: 0, turns: [transcript] } }),
    )
    await page.goto(`${fake.app.listeningOrigin}/#/playground/demo/abc`)
  }

  test('a session made elsewhere is shown with its text, and continues from its state', { tags: 'night' }, async () => {
    const asked = await answerBy((route) => route.fulfill(streamed('Yes.')))
    const messages = [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'Well?' },
      { role: 'assistant', content: 'Well.', reasoning_content: 'Hm.' },
    ]
    await openSession({ ...TURN, text: '', messages })
    await page.locator('.answer', { hasText: 'Well.' }).waitFor()
    await page.getByText('Thought').click()
    await page.getByText('Hm.').waitFor()
    await send('And now?')
    await answered(2)
    expect(asked[0]).toMatchObject({
      messages: [{ role: 'user', content: 'And now?' }],
      session: { id: 'abc', from: 1 },
    })
    await page.getByRole('button', { name: 'Settings' }).click()
    expect(await page.getByLabel('System prompt').inputValue()).toBe('Be brief.')
  })

  test('tool calls and their results are shown as such again, and the tools are still offered', {
    tags: 'night',
  }, async () => {
    const asked = await answerBy((route) => route.fulfill(streamed('Yes.')))
    const tools = [{ type: 'function', function: { name: 'add', parameters: {} } }]
    const called = { name: 'add', arguments: '{"a":1}' }
    const messages = [
      { role: 'user', content: '1 and 1?' },
      { role: 'assistant', content: '', tool_calls: [{ function: called }] },
      { role: 'tool', content: '2' },
      { role: 'assistant', content: 'Two.' },
    ]
    await openSession({ ...TURN, text: '', messages, tools })
    await page.getByText('Calls add').waitFor()
    await page.getByText('Result of add').waitFor()
    await page.locator('.answer', { hasText: 'Two.' }).waitFor()
    expect(await page.locator('.question').count()).toBe(1)
    await send('And now?')
    await answered(3)
    expect(asked[0]).toMatchObject({ tools, session: { id: 'abc', from: 1 } })
  })

  test('a session of a raw text continues from its state, or not at all', { tags: 'night' }, async () => {
    const asked = await answerBy((route) => route.fulfill(streamed('Yes.')))
    const models = ['demo', 'other'].map((id) => ({ id, state: 'ready' }))
    await page.route('**/v1/models', (route) => route.fulfill({ json: { data: models } }))
    await page.reload()
    await openSession({ ...TURN, text: 'The cat sat', messages: null })
    await page.getByText('The cat sat').waitFor()
    const use = { id: 'abc', from: 1 }
    await page.locator('select.target').selectOption('other')
    await send('Well?')
    await page.getByText('their texts are not known here').waitFor()
    expect(asked).toHaveLength(0)
    await page.locator('select.target').selectOption('demo')
    await page.getByRole('button', { name: 'Answer again' }).last().click()
    await expect.poll(() => asked.length).toBe(1)
    expect(asked[0]).toMatchObject({ session: use })
  })

  test('an answer continues while another conversation is shown', { tags: 'night' }, async () => {
    const held: Route[] = []
    await answerBy(async (route) => void held.push(route))
    await send('First')
    await expect.poll(() => held.length).toBe(1)
    await openSession({ ...TURN, text: 'The cat sat', messages: null })
    await page.getByText('The cat sat').waitFor()
    expect(await page.getByRole('button', { name: 'Send' }).count()).toBe(1)
    await held[0]!.fulfill(streamed('Yes.'))
  })
})

const TURN = { turn: 1, parent: 0, tokens: 9 }

const SESSION = {
  ...{ id: 'abc', version: 1, head: 1, created: 1, updated: 1, expires: null, bytes: 400_000 },
  turns: [{ turn: 1, parent: 0, tokens: 9, created: 1, tier: 'disk', saved: true }],
}

/** An answer in one piece. */
function streamed(content: string) {
  const chunk = { choices: [{ index: 0, delta: { content }, finish_reason: 'stop' }] }
  const body = `data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`
  return { contentType: 'text/event-stream', body }
}
