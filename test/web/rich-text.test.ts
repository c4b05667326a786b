import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { blocksOf, spansOf } from '../../web/src/lib/rich-text.ts'

describe('blocks', () => {
  test('code is what stands between fences', () => {
    expect(blocksOf('See:\n\n```ts\nconst a = 1\n\n\tb()\n```\n\nDone.')).toEqual([
      { type: 'text', text: 'See:' },
      { type: 'code', language: 'ts', text: 'const a = 1\n\n\tb()' },
      { type: 'text', text: 'Done.' },
    ])
  })

  test('a fence that is still open, and one inside a longer one', () => {
    expect(blocksOf('~~~\na')).toEqual([{ type: 'code', language: '', text: 'a' }])
    expect(blocksOf('````\n```\na\n```\n````')).toEqual([
      { type: 'code', language: '', text: '```\na\n```' },
    ])
  })

  test('plain text is one block, line ends and all', () => {
    expect(blocksOf('- a\n- b\n\n1 ** 2')).toEqual([{ type: 'text', text: '- a\n- b\n\n1 ** 2' }])
    expect(blocksOf(' \n')).toEqual([])
  })
})

describe('spans', () => {
  test('code, bold and headings', () => {
    expect(spansOf('# Title\nUse `a` or ``b`c`` **now**.')).toEqual([
      { type: 'heading', text: 'Title\n' },
      { type: 'plain', text: 'Use ' },
      { type: 'code', text: 'a' },
      { type: 'plain', text: ' or ' },
      { type: 'code', text: 'b`c' },
      { type: 'plain', text: ' ' },
      { type: 'bold', text: 'now' },
      { type: 'plain', text: '.' },
    ])
  })

  test('marks that mean nothing stay', () => {
    for (const text of ['2 ** 3 ** 4', '`open', '#hashtag', 'a_b_c *x*', '****', '``````']) {
      expect(spansOf(text)).toEqual([{ type: 'plain', text }])
    }
  })

  test('no character but marks is lost, and none is made', () => {
    const strip = (text: string) => text.replace(/[`*#~\s]/g, '')
    const pieces = fc.array(fc.constantFrom('a', '`', '**', '# ', '\n', '```', ' ', '<b>', '语'))
    fc.assert(
      fc.property(pieces, (parts) => {
        const text = parts.join('')
        const shown = blocksOf(text).flatMap((block) =>
          block.type === 'code' ? [block] : spansOf(block.text),
        )
        const languages = blocksOf(text).map((block) =>
          block.type === 'code' ? block.language : '',
        )
        const count = (value: string) => [...strip(value)].sort().join('')
        // The rest of a fence's line is its language.
        expect(count(shown.map((one) => one.text).join('') + languages.join(''))).toBe(count(text))
      }),
    )
  })
})
