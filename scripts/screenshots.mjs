/**
 * Takes pictures of the dashboard: `node scripts/screenshots.mjs [FOLDER]`, into docs/images by default. With `--all`
 * it takes every page, light and dark, on a desktop and on a phone, for review. Needs `npm run build`, and a Chromium
 * on PATH or CHROMIUM_PATH.
 */
import { execFileSync, spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { chromium } from 'playwright-core'

const { values, positionals } = parseArgs({ options: { all: { type: 'boolean' } }, allowPositionals: true })
const [folder = 'docs/images'] = positionals
const DESK = { width: 1200, height: 750 }
const PHONE = { width: 390, height: 844 }
const PAGES = ['home', 'playground', 'translate', 'batch', 'models', 'workers', 'overview']
PAGES.push('machines', 'requests', 'sessions', 'keys', 'api', 'docs', 'settings')
/** The pictures in docs/. */
const COMMITTED = [
  ...PAGES.filter((page) => !['translate', 'docs', 'settings'].includes(page)).map((page) => ({ page, name: page })),
  { page: 'translate', name: 'translate', locale: 'zh-CN' },
  { page: 'playground', name: 'phone', viewport: PHONE, colorScheme: 'dark', hasTouch: true },
]

const WHO = ['The cat', 'The dog', 'The panda', 'The lion', 'My mother', 'My father', 'Tom', 'Linda']
const WHAT = ['is happy.', 'is tired.', 'likes apples.', 'has two red apples.', 'sees three birds.']
/** Sentences of the demo model's domain. */
const SENTENCES = WHO.flatMap((who) => WHAT.map((what) => `${who} ${what}`))

const scratch = mkdtempSync(join(tmpdir(), 'skein-pictures-'))
const variables = { XDG_DATA_HOME: scratch, XDG_CACHE_HOME: scratch }
const env = { ...process.env, ...variables }
/** Keys for the Keys page, and one to open all other pages. */
const addKey = (...words) =>
  execFileSync(process.execPath, ['dist/cli/main.js', 'keys', 'add', ...words, '--json'], { env })
const { secret } = JSON.parse(addKey('boss', '--role', 'admin'))
addKey('grafana', '--role', 'operator', '--expires', '90d')
addKey('alice', '--rpm', '60', '--tpm', '20000')
addKey('translator', '--rows', '512', '--priority', '-1')
const args = ['dist/cli/main.js', 'serve', 'demo', '--port', '0']
const server = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'ignore'], env })
const url = await new Promise((resolve, reject) => {
  createInterface({ input: server.stdout }).on('line', (line) => {
    const found = /^address +(\S+)/.exec(line)?.[1]
    if (found) resolve(found)
  })
  server.once('exit', () => reject(new Error('the server ended')))
})
const executablePath = process.env.CHROMIUM_PATH ?? '/usr/bin/chromium'
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] })
mkdirSync(folder, { recursive: true })
try {
  await makeHistory()
  for (const picture of values.all ? everything() : COMMITTED) await take(picture)
} finally {
  await browser.close()
  server.kill('SIGTERM')
}

function everything() {
  return PAGES.flatMap((page) => [
    { page, name: `${page}-light` },
    { page, name: `${page}-dark`, colorScheme: 'dark' },
    { page, name: `${page}-phone`, viewport: PHONE, hasTouch: true, isWhole: true },
    { page, name: `${page}-zh`, locale: 'zh-CN' },
  ])
}

/** Makes some conversations and load. */
async function makeHistory() {
  const page = await open({})
  await page.goto(`${url}/#/playground`)
  for (const question of ['What is the capital of Japan?', 'What is 3 plus 4?']) {
    await ask(page, 'What is the capital of France?')
    await ask(page, question)
    await page.getByRole('button', { name: 'New conversation' }).first().click()
  }
  await page.goto(`${url}/#/batch`)
  await fill(page, 'batch')
  await page.context().close()
}

async function ask(page, question) {
  const answers = page.locator('.exchange')
  const before = await answers.count()
  await page.locator('.composer textarea').fill(question)
  await page.keyboard.press('Enter')
  await answers.nth(before).locator('.answer[aria-busy=false]').waitFor()
}

async function open({ viewport = DESK, colorScheme = 'light', locale = 'en-GB', hasTouch = false }) {
  const options = { viewport, colorScheme, locale, hasTouch, serviceWorkers: 'block' }
  const context = await browser.newContext(options)
  await context.addInitScript((key) => sessionStorage.setItem('skein.key', key), secret)
  return context.newPage()
}

async function take(picture) {
  const { page: name, isWhole = false } = picture
  const page = await open(picture)
  await page.goto(`${url}/#/${name}`)
  await page.locator('main h1, .composer').first().waitFor()
  await fill(page, name)
  await page.waitForTimeout(800)
  const path = join(folder, `${picture.name}.png`)
  await page.screenshot({ path, fullPage: isWhole })
  process.stdout.write(`${path}\n`)
  await page.context().close()
}

/** Actions that a page needs before its picture. */
async function fill(page, name) {
  if (name === 'playground') {
    await ask(page, 'What is the capital of France?')
    await ask(page, 'What is the capital of Japan?')
    const isDesk = page.viewportSize().width === DESK.width
    if (isDesk)
      await page
        .getByRole('button', { name: /^(Settings|设置)$/ })
        .first()
        .click()
  }
  if (name === 'batch') {
    await page.locator('form.batch select').last().selectOption('512')
    await page.locator('form.batch button.primary').click()
    // Taken while it fills.
    await page.locator('ol.cells li').nth(511).waitFor()
    await page.waitForTimeout(4000)
  }
  if (name === 'translate') {
    await page.locator('form.translate textarea').fill(SENTENCES.join('\n'))
    await page.locator('form.translate button.primary').click()
    await page.locator(`.translation progress[value="${SENTENCES.length}"]`).waitFor()
  }
}
