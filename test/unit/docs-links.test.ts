import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { expect, test } from 'vitest'
import { anchorOf } from '../../web/src/lib/anchors.ts'
import { PAGES, ROOT } from '../helpers/pages.ts'

function anchorsOf(page: string): Set<string> {
  const headings = readFileSync(join(ROOT, page), 'utf8').matchAll(/^#+ (.+)$/gm)
  return new Set([...headings].map(([, text]) => anchorOf(text!)))
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

test.each(PAGES)('every link of %s has a target', (page) => {
  expect(brokenLinks(page)).toEqual([])
})
