import { expect, test } from 'vitest'
import { anchorOf, withWholeLinks } from '../../web/src/lib/anchors.ts'
import { parseRoute } from '../../web/src/lib/router.ts'

test.each([
  ['Files and batches', 'files-and-batches'],
  ['`POST /v1/chat`: tools', 'post-v1chat-tools'],
  ['状态 fp16', '状态-fp16'],
])('the anchor of "%s" is %s', (heading, anchor) => {
  expect(anchorOf(heading)).toBe(anchor)
})

test('links to pages and headings are completed, others are left alone', () => {
  const text =
    '[a](api.md) [b](#keys) [c](clients/zed.md#run-it) [d](https://x.org/y.md#z) [e](dev/loop.md) `f()` [g]()'
  const whole = (target: string) => (target.startsWith('dev/') ? null : `<${target}>`)
  expect(withWholeLinks(text, whole)).toBe(
    '[a](<api.md>) [b](<#keys>) [c](<clients/zed.md#run-it>) [d](https://x.org/y.md#z) [e](dev/loop.md) `f()` [g]()',
  )
})

test('an address may name a heading of its page', () => {
  const plain = { page: 'docs', argument: 'api', rest: [], anchor: null }
  expect(parseRoute('#/docs/api')).toEqual(plain)
  expect(parseRoute('#/docs/api#keys')).toEqual({ ...plain, anchor: 'keys' })
  expect(parseRoute('#/docs/clients/zed#%E4%B8%AD')).toEqual({
    ...plain,
    argument: 'clients',
    rest: ['zed'],
    anchor: '中',
  })
  expect(parseRoute('#/docs/a%23b')).toEqual({ ...plain, argument: 'a#b' })
})
