import fc from 'fast-check'
import { describe, expect, test, vi } from 'vitest'
import { decoded, parse, safeAddress } from '../../web/src/markdown/parse.ts'

const typesOf = (text: string) => parse(text).map(({ type }) => type)

/** Tokens of a paragraph, by type and text. */
function inlineOf(text: string): [string, unknown][] {
  const [paragraph] = parse(text)
  const { tokens = [] } = paragraph as { tokens?: { type: string; text?: string }[] } // a paragraph has them
  return tokens.map(({ type, text: own }) => [type, own])
}

describe('Markdown', () => {
  test('has all blocks that models write', () => {
    const text = '# A\n\ntext\n\n- a\n- b\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n```js\nf()\n```\n\n> q\n\n---'
    const blocks = typesOf(text).filter((type) => type !== 'space')
    expect(blocks).toEqual(['heading', 'paragraph', 'list', 'table', 'code', 'blockquote', 'hr'])
  })

  test('while it is being written, the last fence counts as open', () => {
    const [code] = parse('```py\nprint(1)')
    expect(code).toMatchObject({ type: 'code', lang: 'py', text: 'print(1)' })
  })

  test('maths is distinguished from prices, code and text', () => {
    expect(inlineOf('so $a^2$ and \\(b\\) are')).toEqual([
      ['text', 'so '],
      ['maths', 'a^2'],
      ['text', ' and '],
      ['maths', 'b'],
      ['text', ' are'],
    ])
    expect(typesOf('$$\n\\int x\n$$')).toEqual(['maths'])
    expect(typesOf('\\[ x \\]')).toEqual(['maths'])
    for (const text of ['from $5 to $10', 'US$ 5', '`$a$`', '$ a $', 'a $x']) {
      expect(inlineOf(text).some(([type]) => type === 'maths')).toBe(false)
    }
  })

  test('loses no text, whatever it is', () => {
    const pieces = fc.array(
      fc.constantFrom('a', '`', '**', '# ', '\n', '```', ' ', '<b>', '语', '$', '\\(', '| ', '- ', '[x](y)'),
    )
    fc.assert(
      fc.property(pieces, (parts) => {
        const text = parts.join('')
        const plain = (value: string) => value.replace(/\s+/g, '')
        expect(
          plain(
            parse(text)
              .map(({ raw }) => raw)
              .join(''),
          ),
        ).toBe(plain(text))
      }),
    )
  })

  /** Characters that regular expressions are given, which bounds what they read. */
  function workOf(text: string): number {
    let work = 0
    const { exec } = RegExp.prototype
    const counted = vi.spyOn(RegExp.prototype, 'exec').mockImplementation(function (this: RegExp, given: string) {
      work += given.length
      return exec.call(this, given)
    })
    parse(text)
    counted.mockRestore()
    return work
  }

  test.for([
    [
      'growing runs of backticks',
      (n: number) => Array.from({ length: Math.sqrt(2 * n) }, (_, i) => '`'.repeat(i)).join('a'),
    ],
    ['backticks without an end', (n: number) => `${'`a '.repeat(n / 3)}\`\``],
    ['runs of two lengths', (n: number) => '`a``b'.repeat(n / 5)],
    ['stars', (n: number) => '*a '.repeat(n / 3)],
    ['brackets', (n: number) => '['.repeat(n)],
    ['marks inside each other', (n: number) => '**a '.repeat(n / 7) + 'a**'.repeat(n / 7)],
    ['dollars', (n: number) => `${'$$'.repeat(n / 2)}a`],
    ['quotes inside each other', (n: number) => `${'> '.repeat(n / 2)}a`],
    ['lists inside each other', (n: number) => `${'- '.repeat(n / 2)}a`],
  ] as const)('%s take time by their length, not by its square, and lose nothing', ([, make]) => {
    const [text, twice] = [make(60_000), make(120_000)]
    expect(workOf(twice) / workOf(text)).toBeLessThan(2.5)
    expect(
      parse(text)
        .map(({ raw }) => raw)
        .join('')
        .replace(/\s/g, ''),
    ).toBe(text.replace(/\s/g, ''))
  })

  test('a paragraph of an ordinary length keeps its marks, and a long one its text', () => {
    expect(inlineOf(`${'word '.repeat(1500)}**b**`).at(-1)).toEqual(['strong', 'b'])
    const long = `${'word '.repeat(2000)}**b**`
    expect(inlineOf(long)).toEqual([['text', long]])
  })

  test('only web and mail addresses are links', () => {
    expect(safeAddress('https://example.org/a?b')).toBe('https://example.org/a?b')
    expect(safeAddress('mailto:a@example.org')).toBe('mailto:a@example.org')
    for (const bad of ['javascript:alert(1)', ' javascript:alert(1)', 'data:text/html,x', '/x', 'x']) {
      expect(safeAddress(bad)).toBeNull()
    }
  })

  test('character references become their characters; others stay', () => {
    expect(decoded('a &lt;b&gt; &amp;amp; &#39;c&#x27; &nope; &#0; &#xd800;')).toBe(
      "a <b> &amp; 'c' &nope; &#0; &#xd800;",
    )
  })
})
