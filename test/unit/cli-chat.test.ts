import { PassThrough } from 'node:stream'
import { describe, expect, test, vi } from 'vitest'
import { TerminalMarkdown } from '../../src/cli/chat/markdown.ts'
import { Prompt } from '../../src/cli/chat/prompt.ts'
import { isLikeText } from '../../src/cli/terminal/model-or-text.ts'
import { hasColours, type Paint, plain } from '../../src/cli/terminal/output.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const tagged: Paint = (style, text) => `<${style}>${text}</>`

function shown(text: string, paint = tagged, size = text.length): string {
  const markdown = new TerminalMarkdown(paint)
  let out = ''
  for (let at = 0; at < text.length; at += size) out += markdown.write(text.slice(at, at + size))
  return out + markdown.end()
}

describe('Markdown in a terminal', () => {
  const TEXT = `# A title with \`code\`

Plain, **bold**, *slanted* and \`a * b\`; 2 * 3 * 4 = 24, **never closed.
- one
  * two
3. three
> said

\`\`\`js
const a = **1**
\`\`\`
| a | long |
|---|:----|
| 你好 | **x** |
See [the site](https://x.org).`

  test('becomes lists, code, tables and bold words', () => {
    expect(shown(TEXT)).toBe(
      `<bold>A title with <cyan>code</></>

Plain, <bold>bold</>, <italic>slanted</> and <cyan>a * b</>; 2 * 3 * 4 = 24, **never closed.
• one
  • two
3. three
<dim>│ </>said

  <dim>js</>
  <cyan>const a = **1**</>
<bold>a     long</>
你好  <bold>x</>
See <underline>the site</> <dim>(https://x.org)</>.`,
    )
  })

  test.each([1, 2, 3, 7])('is the same in pieces of %i', (size) => {
    expect(shown(TEXT, tagged, size)).toBe(shown(TEXT))
  })

  test('words are printed before their line ends', () => {
    const markdown = new TerminalMarkdown(plain)
    expect(markdown.write('Some words, **bo')).toBe('Some words, ')
    expect(markdown.write('ld** and')).toBe('bold and')
  })
})

test('colours are used in terminals that have them, unless NO_COLOR is set', () => {
  const stream = { isTTY: true, hasColors: () => true }
  const before = process.env.NO_COLOR
  try {
    process.env.NO_COLOR = ''
    expect(hasColours(stream)).toBe(true)
    process.env.NO_COLOR = '1'
    expect(hasColours(stream)).toBe(false)
  } finally {
    if (before === undefined) delete process.env.NO_COLOR
    else process.env.NO_COLOR = before
  }
  expect(hasColours({ ...stream, isTTY: false })).toBe(false)
})

describe('user input', () => {
  function open(isTerminal = true) {
    const [input, output] = [new PassThrough(), new PassThrough()]
    let numStopped = 0
    const running = { is: false }
    const prompt = new Prompt({
      ...{ input, output, isTerminal },
      onInterrupt() {
        if (running.is) numStopped++
        return running.is
      },
    })
    return { prompt, running, type: (keys: string) => input.write(keys), stopped: () => numStopped, input }
  }

  test('is a message per line, between quotes, by Alt+Enter, or pasted', async () => {
    const { prompt, type } = open()
    type('one\rtwo\x1b\rthree\r"""four\r\rfive"""\r\x1b[200~six\rseven\x1b[201~\r')
    const messages = [await prompt.read('> '), await prompt.read('> '), await prompt.read('> ')]
    expect([...messages, await prompt.read('> ')]).toEqual(['one', 'two\nthree', 'four\n\nfive', 'six\nseven'])
    prompt.close()
    expect(await prompt.read('> ')).toBeNull()
  })

  test('Ctrl-C first stops the answer, then clears the line, then leaves', async () => {
    const { prompt, type, running, stopped } = open()
    running.is = true
    type('half\x03')
    await expect.poll(stopped).toBe(1)
    running.is = false
    type('\x03whole\r')
    expect(await prompt.read('> ')).toBe('whole')
    const next = prompt.read('> ')
    type('\x03')
    expect(await next).toBeNull()
  })

  test('a pipe may end within a message', async () => {
    const { prompt, input } = open(false)
    input.end('one\n"""two\nthree')
    expect([await prompt.read(''), await prompt.read(''), await prompt.read('')]).toEqual(['one', 'two\nthree', null])
  })
})

test('a single word of `skein chat` and `skein generate` is a text unless it is like a model', () => {
  vi.stubEnv('XDG_CACHE_HOME', temporaryFolder())
  for (const text of ['hi', 'Hello!', 'why?', "it's", '你好', '1+1=?', 'what of model.pth?', 'say a/b'])
    expect([text, isLikeText(text)]).toEqual([text, true])
  for (const text of ['demo', 'demoo', 'rwkv7-g1-0.4', 'rwkv7-g1-9b', 'model.pth', '模型.pth', 'owner/model', 'v7_x'])
    expect([text, isLikeText(text)]).toEqual([text, false])
})
