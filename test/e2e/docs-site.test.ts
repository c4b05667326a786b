/**
 * The site of docs/: it can be built, has every page, and its search finds words of them. The build runs at night,
 * because npm downloads VitePress.
 */
import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join, posix } from 'node:path'
import { expect, test } from 'vitest'

const DOCS = join(import.meta.dirname, '../../docs')
const SITE = join(DOCS, '.site')
const PAGES = readdirSync(DOCS, { recursive: true, encoding: 'utf8' }).filter(
  (path) => path.endsWith('.md') && !path.startsWith('.site'),
)

test('the lists of the site name every user page', () => {
  const config = readFileSync(join(SITE, '.vitepress/config.mts'), 'utf8')
  const own = PAGES.filter((path) => !path.startsWith('dev/') && !path.endsWith('index.md'))
  expect(own.filter((path) => !config.includes(`'/${path.replace(/\.md$/, '')}'`))).toEqual([])
})

/** Links of a built page that lead to no file of the site, including those of its theme. */
function deadLinks(site: string, page: string): string[] {
  const hrefs = readFileSync(join(site, page), 'utf8').matchAll(/ href="([^"#?:]+)["#?]/g)
  return [...hrefs]
    .map(([, href]) => posix.resolve('/', posix.dirname(page), href!))
    .filter((path) => !['', '.html', '/index.html'].some((end) => isFile(join(site, path + end))))
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() === true
}

test('the site is built, with search', { tags: 'night', timeout: 300_000 }, () => {
  const options = { cwd: SITE, stdio: 'ignore' } as const
  execFileSync('npm', ['install', '--prefer-offline', '--no-audit', '--no-fund'], options)
  execFileSync('npm', ['run', 'build'], options)
  const built = join(SITE, '.vitepress/dist')
  const pages = readdirSync(DOCS, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.md') && !path.startsWith('.site'))
    .map((path) => path.replace(/md$/, 'html'))
  const files = readdirSync(built, { recursive: true, encoding: 'utf8' })
  expect(pages.filter((page) => !files.includes(page))).toEqual([])
  for (const page of files.filter((path) => path.endsWith('.html') && path !== '404.html'))
    expect(deadLinks(built, page), page).toEqual([])
  for (const [locale, word] of [
    ['root', 'troubleshooting#'],
    ['zh', '会话'],
  ] as const) {
    const index = files.find((path) => path.includes(`@localSearchIndex${locale}.`))!
    expect(readFileSync(join(built, index), 'utf8')).toContain(word)
  }
})
