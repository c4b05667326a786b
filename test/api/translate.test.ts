import { describe, expect, test, vi } from 'vitest'
import { joinTexts, splitTexts } from '../../src/api/translate/join.ts'
import { delimitersOf, hasSameMarks, splitAtMarks } from '../../src/api/translate/marks.ts'
import { detectLanguage, labelOf } from '../../src/api/translate/prepare.ts'
import { keyOf, type Outcomes, type Part, toParts } from '../../src/api/translate/text.ts'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import { DEFAULT_LIMITS } from '../../src/gateway/http/limits.ts'
import { turns } from '../../src/threads/turns.ts'
import { answer, byteCodec } from '../helpers/fake-engine.ts'
import { eventsOf, postTo, serve } from './kit.ts'

const PATH = '/translate/v1/batch-translate'
const promptOf = ({ prompt }: GenerateRequest) => byteCodec.decode(prompt)
/** The text to translate in a prompt. */
const sourceOf = (request: GenerateRequest) => /^[^:]+: (.*)\n\n[^:]+:$/s.exec(promptOf(request))![1]!
/** "Translates" into capitals and keeps tags and placeholders. */
const capitals = (text: string) =>
  text.replace(/<[^>]*>|\{\d+\}|[^<{]+/g, (part) => (/^[<{]/.test(part) ? part : part.toUpperCase()))
const translating = (request: GenerateRequest) => answer(request, ` ${capitals(sourceOf(request))}`)

async function translate(body: object, script = translating) {
  const { app, engine } = serve(script)
  const reply = await postTo(app, PATH, { source_lang: 'en', target_lang: 'zh-CN', ...body })
  const translations = reply.json().translations as { text: string; error?: string }[]
  return { reply, engine, translations, texts: translations?.map(({ text }) => text) }
}

test('the prompt, and how it is sampled', async () => {
  const { engine, translations } = await translate({ text_list: ['Hello world!', 'Good morning'] })
  expect(engine.requests.map(promptOf)).toEqual([
    'English: Hello world!\n\nChinese:',
    'English: Good morning\n\nChinese:',
  ])
  expect(translations).toEqual([
    { detected_source_lang: 'en', text: 'HELLO WORLD!', finish_reason: 'stop' },
    { detected_source_lang: 'en', text: 'GOOD MORNING', finish_reason: 'stop' },
  ])
  const [request] = engine.requests
  expect(request).toMatchObject({
    maxTokens: 4 * request!.prompt.length + 64,
    sampling: { topK: 1 },
    stop: { strings: ['\n\n'] },
  })
  expect([...request!.boundaries!]).toEqual(['English:'.length])
})

test('streamed, texts grow to those of the whole reply', async () => {
  const text_list = ['One sentence of some words.\n\nAnother.', 'same', '42', 'same']
  const body = { source_lang: 'en', target_lang: 'zh-CN', text_list }
  const { app } = serve(translating)
  const whole = (await postTo(app, PATH, body)).json()
  const events = eventsOf((await postTo(app, PATH, { ...body, stream: true })).body)
  expect(events.slice(-2)).toEqual([whole, '[DONE]'])
  const drafts = events.slice(0, -2) as { index: number; text: string; done: boolean }[]
  const of = (index: number) => drafts.filter((one) => one.index === index)
  expect(of(0).length).toBeGreaterThan(3)
  for (const [index, { text }] of whole.translations.entries()) {
    if (index === 2) continue
    expect(of(index).at(-1)).toEqual({ index, text, done: true })
    expect(of(index).filter(({ done }) => done)).toHaveLength(1)
  }
  expect(of(2)).toEqual([])
})

describe('count and order', () => {
  test.each([0, 1, 6, 64, 512])('%i texts', async (count) => {
    const text_list = Array.from({ length: count }, (_, i) => `text ${i} y${'x'.repeat((i * 7) % 50)}`)
    const { texts } = await translate({ text_list })
    expect(texts).toEqual(text_list.map((text) => text.toUpperCase()))
  })

  test('empty, blank, duplicate and wordless texts', async () => {
    const text_list = ['', '   ', 'same', '123 + 4', 'same', '\n', '<br>', 'same']
    const { texts, engine } = await translate({ text_list })
    expect(texts).toEqual(['', '', 'SAME', '123 + 4', 'SAME', '', '<br>', 'SAME'])
    expect(engine.requests).toHaveLength(1)
  })

  test('513 are refused', async () => {
    const { reply } = await translate({ text_list: Array(513).fill('a') })
    expect(reply.statusCode).toBe(400)
  })
})

test('paragraphs are translated one by one, and the separators are kept', async () => {
  const text = 'First line\nsecond line.\n\nThird.\r\n\r\n  Fourth. '
  const { texts, engine } = await translate({ text_list: [text] })
  expect(texts).toEqual(['FIRST LINE\nSECOND LINE.\n\nTHIRD.\r\n\r\n  FOURTH.'])
  expect(engine.requests.map(sourceOf)).toEqual(['First line\nsecond line.', 'Third.', 'Fourth.'])
})

describe('tags and placeholders', () => {
  const text = 'See <a href="/x">the page</a> of {0} and <b0>this</b0>.'

  test('a translation that keeps them is used', async () => {
    const { texts, engine } = await translate({ text_list: [text] })
    expect(texts).toEqual(['SEE <a href="/x">THE PAGE</a> OF {0} AND <b0>THIS</b0>.'])
    expect(engine.requests).toHaveLength(1)
  })

  test('if the model loses or changes one, the pieces between them are translated', async () => {
    const losing = (request: GenerateRequest) => answer(request, sourceOf(request).toUpperCase().replace('{0}', ''))
    const { texts, engine } = await translate({ text_list: [text, 'plain'] }, losing)
    expect(texts).toEqual(['SEE <a href="/x">THE PAGE</a> OF {0} AND <b0>THIS</b0>.', 'PLAIN'])
    expect(engine.requests.map(sourceOf).slice(2)).toEqual(['See', 'the page', 'of', 'and', 'this'])
  })

  test('one that the model invents is removed', async () => {
    const inventing = (request: GenerateRequest) => answer(request, `<b>${sourceOf(request)}</b>`)
    expect((await translate({ text_list: ['one'] }, inventing)).texts).toEqual(['one'])
  })

  test('delimiters of the request', async () => {
    const losing = (request: GenerateRequest) =>
      answer(
        request,
        sourceOf(request)
          .replace(/\[\[\d\]\]/g, '')
          .toUpperCase(),
      )
    const body = { text_list: ['a [[0]] b'], placeholders: ['[[', ']]'] }
    expect((await translate(body, losing)).texts).toEqual(['A [[0]] B'])
    const marks = delimitersOf(['<', '>', 'b'])
    expect(splitAtMarks('x<b0></b0>y', marks)).toEqual(['x', '<b0>', '', '</b0>', 'y'])
    expect(hasSameMarks('<b0>x</b0>', '</b0>y<b0>', marks)).toBe(true)
    expect(hasSameMarks('<b0>x</b0>', '<b0>y', marks)).toBe(false)
    expect(hasSameMarks('a < b', 'a << b', marks)).toBe(true)
  })
})

describe('failures', () => {
  function* poisoned(request: GenerateRequest): Generator<EngineEvent> {
    if (sourceOf(request) !== 'poison') {
      yield* translating(request)
      return
    }
    const error = { code: 'kernel_failed', message: 'secret detail' } as const
    yield { type: 'error', id: request.id, error }
  }

  test('a text that fails does so alone, and keeps its place', async () => {
    const { texts, translations, reply } = await translate({ text_list: ['a', 'poison', 'b', 'c\n\npoison'] }, poisoned)
    expect(reply.statusCode).toBe(200)
    expect(texts).toEqual(['A', '', 'B', ''])
    expect(translations[1]).toMatchObject({ finish_reason: 'error' })
    expect(translations[1]!.error).toContain('the model failed')
    expect(reply.body).not.toContain('secret detail')
  })

  test('a call of which nothing could be translated fails', async () => {
    const { reply } = await translate({ text_list: ['poison', '12'] }, poisoned)
    expect(reply.statusCode).toBe(500)
    expect(reply.json().error).toEqual(expect.any(String))
  })

  test('a text too long for the model fails alone', async () => {
    const { texts, translations } = await translate({ text_list: ['a', 'x'.repeat(6000)] })
    expect(texts).toEqual(['A', ''])
    expect(translations[1]!.error).toContain('5000 tokens')
  })

  test('an answer that reached the limit says so', async () => {
    const { translations } = await translate({ text_list: ['a'] }, (request) => answer(request, 'A', 'length'))
    expect(translations[0]).toMatchObject({ text: 'A', finish_reason: 'length' })
  })
})

describe('access', () => {
  test('with a key, in header or body, unless translation is open', async () => {
    const body = { target_lang: 'en', text_list: ['你好'] }
    const closed = serve(translating, { keys: ['secret'] }).app
    expect((await postTo(closed, PATH, body)).statusCode).toBe(401)
    expect((await postTo(closed, PATH, { ...body, password: 'secret' })).statusCode).toBe(200)
    const open = serve(translating, { keys: ['secret'], openTranslate: true }).app
    expect((await postTo(open, PATH, body)).statusCode).toBe(200)
    expect((await postTo(open, '/v1/completions', { prompt: 'x' })).statusCode).toBe(401)
    expect((await postTo(open, '/v2/chat/completions', { contents: ['x'] })).statusCode).toBe(401)
  })
})

test.each([
  [{ target_lang: 'a\n\nUser:' }, 'target_lang'],
  [{ source_lang: 'x:', target_lang: 'en' }, 'source_lang'],
  [{ target_lang: null }, 'target_lang'],
  [{ text_list: 'x' }, 'text_list'],
])('%o is refused', async (fields, param) => {
  const { app } = serve()
  const reply = await postTo(app, PATH, { target_lang: 'en', text_list: ['x'], ...fields })
  expect(reply.statusCode).toBe(400)
  expect(reply.json().error).toContain(param)
})

test.each([
  ['zh-CN', 'Chinese'],
  ['zh-TW', 'Chinese'],
  ['en', 'English'],
  ['ja', 'Japanese'],
  ['fr', 'French'],
  ['de', 'German'],
  ['es', 'Spanish'],
  ['ru', 'Russian'],
  ['pt-BR', 'Portuguese'],
  ['ko', 'Korean'],
  ['Klingon', 'Klingon'],
  ['qq', 'qq'],
])('%s is labelled %s', (code, label) => {
  expect(labelOf(code)).toBe(label)
})

describe('auto', () => {
  test.each([
    ['你好世界', 'zh-CN'],
    ['這是個問題', 'zh-TW'],
    ['早上好', 'zh-CN'],
    ['おはようございます', 'ja'],
    ['日本語のテキスト', 'ja'],
    ['안녕하세요', 'ko'],
    ['Доброе утро', 'ru'],
    ['Добрий ранок і гарного дня', 'unknown'],
    ['The rain had stopped, but the street still glistened.', 'en'],
    ['Hello world!', 'en'],
    ['Je ne sais pas où il est.', 'fr'],
    ['Ich weiß nicht, wo er ist.', 'de'],
    ['¿Dónde está la biblioteca?', 'es'],
    ['Ele não está aqui.', 'pt'],
    ['Rhinoceros', 'unknown'],
    ['12 %', 'unknown'],
    ['<b class="x">你好</b>', 'zh-CN'],
    ['{0} <a href="https://example.com">Доброе утро</a>', 'ru'],
    ['<b></b>', 'unknown'],
    ['', 'unknown'],
    ['ⵜⴰⵎⴰⵣⵉⵖⵜ', 'unknown'],
  ])('%s is %s', (text, language) => {
    expect(detectLanguage(text)).toBe(language)
  })

  test('the language of each text is detected; an ambiguous one gets the most common source language', async () => {
    const { app, engine } = serve(translating)
    const text_list = ['Où est-il ?', 'Rhinocéros', 'The end of the story']
    const body = { target_lang: 'de', text_list: [...text_list, 'Il est dans la maison.'] }
    const reply = await postTo(app, PATH, body)
    const languages = (reply.json().translations as { detected_source_lang: string }[]).map(
      ({ detected_source_lang }) => detected_source_lang,
    )
    expect(languages).toEqual(['fr', 'unknown', 'en', 'fr'])
    expect(engine.requests.map(promptOf).map((prompt) => prompt.split(':')[0])).toEqual([
      'French',
      'French',
      'English',
      'French',
    ])
    await postTo(app, PATH, { target_lang: 'de', text_list: ['Rhino'], source_lang: 'auto' })
    expect(promptOf(engine.requests.at(-1)!)).toBe('Text: Rhino\n\nGerman:')
  })
})

test('a client that leaves ends every row', async () => {
  const { app, engine } = serve(async function* (request, signal) {
    yield { type: 'prompt', id: request.id, logprobs: null }
    await new Promise<void>((resolve) => signal?.addEventListener('abort', () => resolve()))
  })
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const leaving = new AbortController()
  const body = JSON.stringify({ target_lang: 'en', text_list: ['a', 'b', 'c'] })
  const headers = { 'content-type': 'application/json' }
  const sent = fetch(url + PATH, { method: 'POST', headers, body, signal: leaving.signal })
  await expect.poll(() => engine.requests.length).toBe(3)
  leaving.abort()
  await expect(sent).rejects.toThrow()
  await expect.poll(() => engine.cancelled.length).toBe(3)
  await app.close()
})

test('the limit on texts is the documented one', () => {
  expect(DEFAULT_LIMITS.prompts).toBe(512)
})

describe('hostile texts', () => {
  test.each([[['1', 'x', '']], [['a1', 'x']], [['a', '1']]])(
    'delimiters with digits are refused: %j',
    async (placeholders) => {
      const { reply } = await translate({ text_list: ['a'], placeholders })
      expect(reply.statusCode).toBe(400)
      expect(reply.body).toContain('placeholders')
    },
  )

  // With backtracking at every character, each of these takes hours.
  test.each([
    ['digits', '1', null],
    ['left delimiters', '<', ['<', '>', '<']],
    ['left delimiters and digits', '<1', ['<', '>', '']],
    ['slashes', '/', ['/', '/', '/']],
    ['open tags', '<a', null],
    ['open braces', '{{1', null],
    ['line ends', '\n \t', null],
  ])('tags are found in time linear in the text: %s', (_, piece, given) => {
    const delimiters = given === null ? null : delimitersOf(given)
    const text = `a${piece.repeat(4_000_000 / piece.length)}b`
    expect(splitAtMarks(text, delimiters).join('')).toBe(text)
    expect(hasSameMarks(text, text, delimiters)).toBe(true)
    const parts = toParts(text, 'English', delimiters)
    expect(parts.map((part) => (typeof part === 'string' ? part : part.text)).join('')).toBe(text)
  })

  test('a text as long as a page, a call with as many paragraphs as the engine accepts', async () => {
    const long = await translate({ text_list: ['x'.repeat(65_537)] })
    expect(long.reply.statusCode).toBe(413)
    const many = Array.from({ length: 5000 }, (_, i) => `text ${i}`).join('\n\n')
    const paragraphs = await translate({ text_list: [many] })
    expect(paragraphs.reply.statusCode).toBe(413)
    expect(paragraphs.reply.body).toContain('more than 4096 paragraphs')
  })

  test('paragraphs and separators are kept', () => {
    const textsOf = (text: string) =>
      toParts(text, 'English', null).map((part) => (typeof part === 'string' ? part : part.text))
    for (const text of ['a', 'a\nb', 'a\n\nb', 'a\r\n \t\r\n\n b\n\n\nc\nd', 'a\n \n']) {
      expect(textsOf(text).join('')).toBe(text.trim())
    }
    expect(textsOf('a\nb\n \nc').filter((part) => /\w/.test(part))).toEqual(['a\nb', 'c'])
  })
})

test('long texts are split and joined off the event loop, and come out as short ones do', async () => {
  const piece = 'one <b>two</b> three'
  const textOf = (count: number) => Array.from({ length: count }, () => piece).join('\n\n')
  const onLoop = vi.spyOn(turns, 'do')
  const joined = async (count: number, translation: string | null) => {
    const parts = toParts(textOf(count), 'English', null)
    const outcomes: Outcomes = new Map(
      [piece, 'one', 'two', 'three'].map((text) => [
        keyOf({ source: 'English', text }),
        translation === null ? null : { text: text === piece ? translation : text.toUpperCase(), reason: 'stop' },
      ]),
    )
    onLoop.mockClear()
    const texts = await splitTexts({ texts: [parts], delimiters: null, outcomes })
    const [text] = await joinTexts({ texts, delimiters: null, outcomes })
    return { text: text!, pieces: onLoop.mock.calls.length, numParts: texts[0]!.filter(isPiece).length }
  }
  for (const [count, pieces] of [
    [2, 2],
    [2000, 0],
  ] as const) {
    const repeated = (text: string) => Array.from({ length: count }, () => text).join('\n\n')
    // The marks came through, or did not.
    const [kept, bent] = [await joined(count, 'EINS <b>ZWEI</b> DREI'), await joined(count, 'EINS ZWEI DREI')]
    expect(kept).toEqual({
      text: { text: repeated('EINS <b>ZWEI</b> DREI'), reason: 'stop', failed: null },
      pieces,
      numParts: count,
    })
    expect(bent.text.text).toBe(repeated('ONE <b>TWO</b> THREE'))
    expect(bent).toMatchObject({ pieces, numParts: 3 * count })
    const failed = await joined(count, null)
    expect(failed.text).toMatchObject({ text: '', failed: { source: 'English', text: piece } })
    expect(failed.pieces).toBe(pieces)
  }
  vi.restoreAllMocks()
})

function isPiece(part: Part): boolean {
  return typeof part !== 'string'
}
