/** The site of docs/: it is built, has every page, and its search finds words of them. `SKEIN_SLOW=1`, since npm fetches VitePress. */
import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { IS_SLOW } from '../helpers/slow.ts'

const DOCS = join(import.meta.dirname, '../../docs')
const SITE = join(DOCS, '.site')
const PAGES = readdirSync(DOCS, { recursive: true, encoding: 'utf8' }).filter(
  (path) => path.endsWith('.md') && !path.startsWith('.site'),
)

test('the site’s lists name every page that a user reads', () => {
  const config = readFileSync(join(SITE, '.vitepress/config.mts'), 'utf8')
  const own = PAGES.filter((path) => !path.startsWith('dev/') && path !== 'index.md')
  expect(own.filter((path) => !config.includes(`'/${path.replace(/\.md$/, '')}'`))).toEqual([])
})

test.skipIf(!IS_SLOW)(
  'the site is built, with search',
  () => {
    const options = { cwd: SITE, stdio: 'ignore' } as const
    execFileSync('npm', ['install', '--prefer-offline', '--no-audit', '--no-fund'], options)
    execFileSync('npm', ['run', 'build'], options)
    const built = join(SITE, '.vitepress/dist')
    const pages = readdirSync(DOCS, { recursive: true, encoding: 'utf8' })
      .filter((path) => path.endsWith('.md') && !path.startsWith('.site'))
      .map((path) => path.replace(/md$/, 'html'))
    const files = readdirSync(built, { recursive: true, encoding: 'utf8' })
    expect(pages.filter((page) => !files.includes(page))).toEqual([])
    for (const [locale, word] of [
      ['root', 'troubleshooting#'],
      ['zh', '会话'],
    ] as const) {
      const index = files.find((path) => path.includes(`@localSearchIndex${locale}.`))!
      expect(readFileSync(join(built, index), 'utf8')).toContain(word)
    }
  },
  300_000,
)
