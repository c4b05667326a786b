/** Output formats, tools and their results, on the page Chat of a real server. */
// @module-tag night
import type { Page } from 'playwright-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openPage } from '../../helpers/chromium.ts'
import { type RunningServer, serve } from '../../helpers/cli.ts'
import { describeInBrowser } from './kit.ts'

const WEATHER = JSON.stringify([
  {
    name: 'weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { enum: ['Paris', 'Rome'] } }, required: ['city'] },
  },
])

describeInBrowser('what an answer is held to', (browser) => {
  let server: RunningServer
  let page: Page
  let faults: string[]
  beforeAll(async () => {
    server = await serve(['demo'])
    ;({ page, faults } = await openPage(browser()))
    await page.goto(`${server.url}/#/playground`)
    await page.getByRole('button', { name: 'Settings' }).click()
  })
  afterAll(async () => {
    await page?.context().close()
    await server?.stop()
  })

  const form = () => page.getByLabel('Form of the answer')
  /** The answer, and the request that was sent for it. */
  async function ask(question: string) {
    const answers = page.locator('.exchange')
    const before = await answers.count()
    const sent = page.waitForRequest('**/v1/chat/completions')
    await page.getByLabel('Message').fill(question)
    await page.getByLabel('Message').press('Enter')
    const body = (await sent).postDataJSON()
    const answer = answers.nth(before).locator('.answer[aria-busy=false]')
    await answer.waitFor()
    return { answer, body }
  }

  test('a regular expression', async () => {
    await form().selectOption('regex')
    await page.getByLabel('regular expression').fill('[A-D]{3}')
    const { answer, body } = await ask('Three letters?')
    expect(body.guided_regex).toBe('[A-D]{3}')
    expect(await answer.locator('.prose').textContent()).toMatch(/^[A-D]{3}$/)
  })

  test('a schema: the answer is shown in lines; an error in the JSON is shown beside the field', async () => {
    await form().selectOption('schema')
    const field = page.getByLabel('JSON by a schema')
    await field.fill('{"type": ')
    await page.locator('.field.wrong', { has: field }).getByRole('alert').waitFor()
    const schema = { type: 'object', properties: { capital: { enum: ['Paris', 'Rome'] } }, required: ['capital'] }
    await field.fill(JSON.stringify(schema))
    const { answer } = await ask('What is the capital of France?')
    const shown = (await answer.locator('.code pre').textContent()) ?? ''
    expect(shown).toContain('\n  "capital": ')
    expect(['Paris', 'Rome']).toContain(JSON.parse(shown).capital)
  })

  test('the server reports an invalid grammar', async () => {
    await form().selectOption('grammar')
    await page.getByLabel('grammar', { exact: true }).fill('root ::= ((')
    const { answer } = await ask('Yes or no?')
    expect(await answer.getByRole('alert').textContent()).toContain('grammar')
    await form().selectOption('text')
  })

  test('a called tool waits for its result, and the conversation continues with it', async () => {
    await page.getByLabel('Tools').fill(WEATHER)
    // A model this small does not call tools by itself.
    await page.route('**/v1/chat/completions', (route) =>
      route.continue({ postData: { ...route.request().postDataJSON(), tool_choice: 'required' } }),
    )
    const { answer, body } = await ask('The weather in Paris?')
    expect(body.tools).toEqual([{ type: 'function', function: JSON.parse(WEATHER)[0] }])
    const call = answer.locator('.tool-call')
    await call.getByText('Calls weather').waitFor()
    expect(['Paris', 'Rome']).toContain(JSON.parse((await call.locator('pre').textContent()) ?? '').city)
    await page.unroute('**/v1/chat/completions')
    const button = page.getByRole('button', { name: 'Send the result' })
    expect(await button.isDisabled()).toBe(true)
    const sent = page.waitForRequest('**/v1/chat/completions')
    await page.getByRole('textbox', { name: 'Result of weather' }).fill('{"celsius": 21}')
    await button.click()
    const result = (await sent).postDataJSON()
    expect(result.messages).toEqual([{ role: 'tool', content: '{"celsius": 21}' }])
    expect(result.session.from).toBeGreaterThan(0)
    await page.locator('.tool-results').getByText('Result of weather').waitFor()
    await page.locator('.exchange').last().locator('.answer[aria-busy=false]').waitFor()
    expect(faults).toEqual([])
  })
})
