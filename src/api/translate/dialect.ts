/**
 * POST /translate/v1/batch-translate, the custom interface of Immersive Translate: as many translations as texts, in their
 * order, whatever happens to one of them.
 */
import { SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { drained } from '../answers.ts'
import { modelOf, renderStringError } from '../lightning/body.ts'
import type { RequestLimits } from '../limits.ts'
import { type Call, type Dialect, json, post } from '../route.ts'
import { Matching, Maybe, urgencyFields } from '../schema.ts'
import { joinTexts, splitTexts } from './join.ts'
import { delimitersOf } from './marks.ts'
import { labelOf, piecesOf, prepareTexts, tooManyPieces } from './prepare.ts'
import { keyOf, type Part, type Piece } from './text.ts'
import { Translator, type Written } from './translator.ts'

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
  const isGathered = body.stream !== true
  const translator = new Translator({ id, model, tenant, limits, signal, isGathered }, labelOf(body.target_lang))

  const drafts = isGathered ? null : new Drafts(first)
  for await (const written of translator.run(first.flatMap(toPieces))) if (drafts !== null) yield* drafts.take(written)
  const { outcomes } = translator
  const second = await splitTexts({ texts: first, delimiters, outcomes })
  if (second.reduce((sum, parts) => sum + piecesOf(parts), 0) > mostPieces) throw tooManyPieces(mostPieces)
  await drained(translator.run(second.flatMap(toPieces)))

  if (translator.failure !== null) throw translator.failure
  const joined = await joinTexts({ texts: second, delimiters, outcomes })
  return joined.map(({ text, reason, failed }, i) => ({
    detected_source_lang: languages[i],
    text,
    finish_reason: failed === null ? reason : 'error',
    ...(failed === null ? {} : { error: call.report(translator.errorOf(failed)).message }),
  }))
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

/**
 * A text is sent again when this many characters are new, or a sixteenth of its length: not with every word of a long
 * one.
 */
const STEP_CHARS = 6
const STEP_SHARE = 1 / 16

/** A text: the number of unfinished pieces, its characters, and those not sent yet. */
interface Draft {
  open: number
  chars: number
  untold: number
}

/** Texts while they are translated. Each is sent again whenever enough of it is new. */
class Drafts {
  readonly #texts: readonly (readonly Part[])[]
  readonly #drafts: readonly Draft[]
  /** In which texts a piece is. */
  readonly #places = new Map<string, number[]>()
  readonly #written = new Map<string, Written>()

  constructor(texts: readonly (readonly Part[])[]) {
    this.#texts = texts
    this.#drafts = texts.map(() => ({ open: 0, chars: 0, untold: 0 }))
    for (const [i, parts] of texts.entries()) {
      for (const part of parts) {
        if (typeof part === 'string') continue
        const key = keyOf(part)
        const places = this.#places.get(key)
        if (places?.at(-1) === i) continue
        if (places === undefined) this.#places.set(key, [i])
        else places.push(i)
        this.#drafts[i]!.open++
      }
    }
  }

  /** The texts that have more now, whole so far. */
  *take(written: Written): Generator<{ index: number; text: string; done: boolean }> {
    const { key, text, isOver } = written
    const before = this.#written.get(key)
    const more = text.length - (before?.text.length ?? 0)
    const ends = isOver && before?.isOver !== true
    this.#written.set(key, written)
    for (const index of this.#places.get(key) ?? []) {
      const draft = this.#drafts[index]!
      draft.chars += more
      draft.untold += more
      if (ends) draft.open--
      const done = draft.open === 0
      if (!done && draft.untold < Math.max(STEP_CHARS, draft.chars * STEP_SHARE)) continue
      draft.untold = 0
      yield { index, text: this.#textOf(index), done }
    }
  }

  #textOf(index: number): string {
    const textOf = (part: Part) => (typeof part === 'string' ? part : (this.#written.get(keyOf(part))?.text ?? ''))
    return this.#texts[index]!.map(textOf).join('')
  }
}
