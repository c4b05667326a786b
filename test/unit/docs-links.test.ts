import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { expect, test } from 'vitest'
import { PAGES, ROOT } from '../helpers/pages.ts'

/** As the web sites that show Markdown make them. */
function anchorsOf(page: string): Set<string> {
  const headings = readFileSync(join(ROOT, page), 'utf8').matchAll(/^#+ (.+)$/gm)
  return new Set(
    [...headings].map(([, text]) =>
      text!
        .toLowerCase()
        .replace(/[^\p{L}\p{N} _-]/gu, '')
        .replaceAll(' ', '-'),
    ),
  )
}

function brokenLinks(page: string): string[] {
  const text = readFileSync(join(ROOT, page), 'utf8').replace(/```[\s\S]*?```/g, '')
  const links = [...text.matchAll(/\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"/g)].map(([, a, b]) => a ?? b!)
  return links.filter((link) => {
    if (/^[a-z]+:/.test(link)) return false
    const [path, anchor] = link.split('#') as [string, string?]
    const target = path === '' ? page : join(dirname(page), path)
    if (!existsSync(join(ROOT, target))) return true
    return anchor !== undefined && target.endsWith('.md') && !anchorsOf(target).has(anchor)
  })
}

test.each(PAGES)('every link of %s leads somewhere', (page) => {
  expect(brokenLinks(page)).toEqual([])
})
