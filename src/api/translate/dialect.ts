/**
 * POST /translate/v1/batch-translate, the custom interface of Immersive Translate: as many translations as texts, in their
 * order, whatever happens to one of them.
 */

import { SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { turns } from '../../threads/turns.ts'
import { renderStringError } from '../lightning/errors.ts'
import { modelOf } from '../lightning/model-name.ts'
import type { RequestLimits } from '../limits.ts'
import { type Call, type Dialect, json, post } from '../route.ts'
import { Matching, Maybe } from '../schema.ts'
import { urgencyFields } from '../urgency.ts'
import { Drafts } from './drafts.ts'
import { labelOf } from './languages.ts'
import { delimitersOf } from './marks.ts'
import { piecesOf, prepareTexts, tooManyPieces } from './prepare.ts'
import { assemble, type Part, splitBroken } from './text.ts'
import { type Piece, Translator } from './translator.ts'

const AUTO = 'auto'

export function translateDialect(limits: RequestLimits): Dialect {
  const body = translateBody(limits)
  const summary = 'Translate a list of texts'
  const route = post('/translate/v1/batch-translate', summary, body, async (call) => {
    if (call.body.stream === true) return { kind: 'events', events: events(call) }
    return json({ translations: await drained(translating(call)) })
  })
  return {
    name: 'translate',
    about: 'Immersive Translate',
    routes: [{ ...route, access: 'translate' }],
    renderError: renderStringError,
  }
}

function translateBody(limits: RequestLimits) {
  // It becomes a line of the prompt.
  const Language = Matching('^[^\\n\\r:]{1,64}$', 'a language in 1 to 64 characters, without ":"')
  // They stand beside a number.
  const Delimiter = Matching('^[^0-9]{0,32}$', 'at most 32 characters, none of them a digit')
  return Type.Object({
    source_lang: Maybe(Language),
    target_lang: Language,
    text_list: Type.Array(Type.String(), { maxItems: limits.prompts }),
    placeholders: Maybe(Type.Array(Delimiter, { maxItems: 3 })),
    model: Maybe(Type.String()),
    stream: Maybe(Type.Boolean()),
    ...urgencyFields(),
    password: Maybe(Type.String()),
  })
}

type TranslateBody = Static<ReturnType<typeof translateBody>>

async function drained<T>(source: AsyncGenerator<unknown, T>): Promise<T> {
  for (;;) {
    const { done, value } = await source.next()
    // The type of what is returned holds with `done`.
    if (done) return value as T
  }
}

async function* events(call: Call<TranslateBody>): AsyncGenerator<object> {
  yield { translations: yield* translating(call) }
}

/** Yields what is written; returns the translations, which hold whatever was written before. */
async function* translating(call: Call<TranslateBody>): AsyncGenerator<object, object[]> {
  const { body, id, tenant, limits, signal } = call
  const model = modelOf(call)
  checkLengths(body.text_list, limits)
  const delimiters = delimitersOf(body.placeholders ?? [])
  const given = body.source_lang ?? AUTO
  const language = given === AUTO ? null : given
  const mostPieces = limits.translatedPieces
  const texts = { texts: body.text_list, language, delimiters, mostPieces }
  const { languages, parts: first } = await prepareTexts(texts)
  const translator = new Translator(
    { id, model, tenant, limits, signal },
    labelOf(body.target_lang),
  )
  const outcomeOf = translator.outcomeOf.bind(translator)

  const drafts = body.stream === true ? new Drafts(first) : null
  for await (const written of translator.run(first.flatMap(toPieces)))
    if (drafts !== null) yield* drafts.take(written)
  const second: Part[][] = []
  for (const parts of first) {
    second.push(await turns.do(() => splitBroken(parts, delimiters, outcomeOf)))
  }
  if (second.reduce((sum, parts) => sum + piecesOf(parts), 0) > mostPieces)
    throw tooManyPieces(mostPieces)
  await drained(translator.run(second.flatMap(toPieces)))

  if (translator.failure !== null) throw translator.failure
  const translations: object[] = []
  for (const [i, parts] of second.entries()) {
    const assembled = await turns.do(() => assemble(parts, delimiters, outcomeOf))
    const { text, reason, error } = assembled
    translations.push({
      detected_source_lang: languages[i],
      text,
      finish_reason: error === null ? reason : 'error',
      ...(error === null ? {} : { error: call.report(error).message }),
    })
  }
  return translations
}

/** Not in the schema, which would count the characters of every text. */
function checkLengths(texts: readonly string[], { translatedCharacters }: RequestLimits): void {
  const long = texts.findIndex(({ length }) => length > translatedCharacters)
  if (long < 0) return
  const param = `text_list[${long}]`
  const message = `${param}: a text of ${texts[long]!.length} characters; expected at most ${translatedCharacters}`
  throw new SkeinError('too_large', message, { param })
}

function toPieces(parts: readonly Part[]): Piece[] {
  return parts.filter((part) => typeof part !== 'string')
}
