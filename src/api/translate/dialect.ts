/**
 * POST /translate/v1/batch-translate, the custom interface of Immersive Translate: as many translations as texts, in their
 * order, whatever happens to one of them.
 */
import Type, { type Static } from 'typebox'
import { renderStringError } from '../lightning/errors.ts'
import { modelOf } from '../lightning/model-name.ts'
import type { RequestLimits } from '../limits.ts'
import { type Call, type Dialect, json, post } from '../route.ts'
import { Matching, Maybe } from '../schema.ts'
import { detectLanguage, UNKNOWN } from './detect.ts'
import { labelOf } from './languages.ts'
import { marksPattern } from './marks.ts'
import { assemble, type Part, splitBroken, toParts } from './text.ts'
import { Translator } from './translator.ts'

const AUTO = 'auto'
/** What a text is called whose language nobody knows. */
const NO_LABEL = 'Text'

export function translateDialect(limits: RequestLimits): Dialect {
  const body = translateBody(limits)
  const summary = 'Translate a list of texts'
  const route = post('/translate/v1/batch-translate', summary, body, async (call) =>
    json({ translations: await translate(call) }),
  )
  return {
    name: 'translate',
    routes: [{ ...route, access: 'translate' }],
    renderError: renderStringError,
  }
}

function translateBody(limits: RequestLimits) {
  // It becomes a line of the prompt.
  const Language = Matching('^[^\\n\\r:]{1,64}$', 'a language in 1 to 64 characters, without ":"')
  return Type.Object({
    source_lang: Maybe(Language),
    target_lang: Language,
    text_list: Type.Array(Type.String(), { maxItems: limits.prompts }),
    placeholders: Maybe(Type.Array(Type.String({ maxLength: 32 }), { maxItems: 3 })),
    model: Maybe(Type.String()),
    password: Maybe(Type.String()),
  })
}

type TranslateBody = Static<ReturnType<typeof translateBody>>

async function translate(call: Call<TranslateBody>): Promise<object[]> {
  const { body, id, tenant, limits, signal } = call
  const model = modelOf(call)
  const marks = marksPattern(body.placeholders ?? null)
  const translator = new Translator(
    { id, model, tenant, limits, signal },
    labelOf(body.target_lang),
  )
  const languages = languagesOf(body)
  const fallback = commonest(languages)
  const outcomeOf = translator.outcomeOf.bind(translator)

  const first = body.text_list.map((text, i) => {
    const language = languages[i] === UNKNOWN ? fallback : languages[i]!
    return toParts(text, language === UNKNOWN ? NO_LABEL : labelOf(language), marks)
  })
  await translator.run(piecesOf(first))
  const second = first.map((parts) => splitBroken(parts, marks, outcomeOf))
  await translator.run(piecesOf(second))

  if (translator.failure !== null) throw translator.failure
  return second.map((parts, i) => {
    const { text, reason, error } = assemble(parts, marks, outcomeOf)
    return {
      detected_source_lang: languages[i],
      text,
      finish_reason: error === null ? reason : 'error',
      ...(error === null ? {} : { error: call.report(error).message }),
    }
  })
}

function piecesOf(texts: readonly (readonly Part[])[]) {
  return texts.flat().filter((part) => typeof part !== 'string')
}

/** The language of each text: as the client says, or as the text shows. */
function languagesOf({ source_lang, text_list }: TranslateBody): string[] {
  const given = source_lang ?? AUTO
  return text_list.map((text) => (given === AUTO ? detectLanguage(text) : given))
}

/** The language most texts of the call are in: for the prompts of those that do not show theirs. */
function commonest(languages: readonly string[]): string {
  const counts = new Map<string, number>()
  for (const language of languages) {
    if (language !== UNKNOWN) counts.set(language, (counts.get(language) ?? 0) + 1)
  }
  const [first] = [...counts].sort((a, b) => b[1] - a[1])
  return first?.[0] ?? UNKNOWN
}
