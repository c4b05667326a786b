/** The texts of a call to what there is to translate. Runs on the event loop for short ones, else as a task of a thread. */
import { SkeinError } from '../../errors.ts'
import { runTask, taskPlace } from '../../threads/pool.ts'
import { task } from '../../threads/task.ts'
import type { Delimiters } from './marks.ts'
import { type Part, toParts } from './text.ts'

interface Texts {
  readonly texts: readonly string[]
  /** Null: each text shows its own. */
  readonly language: string | null
  readonly delimiters: Delimiters | null
  /** Pieces of all texts. */
  readonly mostPieces: number
}

interface Prepared {
  readonly languages: readonly string[]
  readonly parts: readonly (readonly Part[])[]
}

/** The label of a text in an unknown language. */
const NO_LABEL = 'Text'
/** About a millisecond of the event loop. */
const INLINE_CHARS = 16 * 1024
const PREPARE = taskPlace(import.meta.url, './prepare.js', 'prepareTask')

export function prepareTexts(texts: Texts): Promise<Prepared> | Prepared {
  const size = texts.texts.reduce((sum, text) => sum + text.length, 0)
  return size <= INLINE_CHARS ? prepare(texts) : runTask(PREPARE, texts)
}

function prepare({ texts, language, delimiters, mostPieces }: Texts): Prepared {
  const languages = texts.map((text) => language ?? detectLanguage(text))
  const fallback = commonest(languages)
  let left = mostPieces
  const parts = texts.map((text, i) => {
    const own = languages[i] === UNKNOWN ? fallback : languages[i]!
    const label = own === UNKNOWN ? NO_LABEL : labelOf(own)
    const all = toParts(text, label, delimiters)
    left -= piecesOf(all)
    if (left < 0) throw tooManyPieces(mostPieces)
    return all
  })
  return { languages, parts }
}

export const prepareTask = task(prepare)

export function piecesOf(parts: readonly Part[]): number {
  return parts.reduce((sum, part) => sum + (typeof part === 'string' ? 0 : 1), 0)
}

/** Each is a row of its own. */
export function tooManyPieces(most: number): SkeinError {
  const message = `text_list: more than ${most} paragraphs to translate; send them in several requests`
  return new SkeinError('too_large', message, { param: 'text_list' })
}

/** The language most texts of the call are in: for the prompts of those that do not show theirs. */
function commonest(languages: readonly string[]): string {
  const counts = new Map<string, number>()
  for (const language of languages) if (language !== UNKNOWN) counts.set(language, (counts.get(language) ?? 0) + 1)
  const [first] = [...counts].sort((a, b) => b[1] - a[1])
  return first?.[0] ?? UNKNOWN
}

const UNKNOWN = 'unknown'

/** Words that texts of any length have, and that hardly occur in the others. */
const WORDS: Readonly<Record<string, string>> = {
  en: 'the of and to is that it for was with as his they be at this have from or had by but what were we when your can said there each which do how their if will about out many then them these some would make like him into has more been its who now people my than did get come made may after being hello world good morning thanks please you are not',
  fr: 'le les des et est une dans que pour qui pas sur plus au aux avec ce cette il elle nous vous ils sont mais ou où leur bien être fait comme tout bonjour merci monde très aussi',
  de: 'der die das und ist nicht ein eine einen dem den des mit sich auf für auch es an werden aus er hat dass sie nach wird bei um noch wie einem über einer hallo guten welt danke ich wir ihr',
  es: 'el los las y es en que por una del con para se al lo como más pero sus le ya este sí porque esta cuando muy sin sobre también hola mundo gracias buenos días está son fue',
  pt: 'os as não uma em com para do da dos das ao mais como mas foi ele ela são também está pelo pela até isso muito olá obrigado mundo você',
  it: 'il gli di che è per una non sono del della con si da nel alla anche più ma come questo questa dei delle ciao grazie mondo buongiorno molto',
  nl: 'het een en van ik te dat niet zijn op voor met hij maar er om aan ook als dan wat hallo goedemorgen wereld dank deze',
}
const LANGUAGES_OF = languagesOf(WORDS)

/** Letters that settle what words leave open. */
const LETTERS: readonly (readonly [RegExp, string])[] = [
  [/[ß]/iu, 'de'],
  [/[ñ¿¡]/iu, 'es'],
  [/[ãõ]/iu, 'pt'],
  [/[œ]/iu, 'fr'],
]

/** The most visibly changed of the simplified characters, and their traditional forms. */
const SIMPLIFIED = '们这来时会说学国过对发后样没还书长见问东车马鱼龙门开关点头'
const TRADITIONAL = '們這來時會說學國過對發後樣沒還書長見問東車馬魚龍門開關點頭'

const MARKUP = /<\/?[a-z][^<>]*>|\{[^{}]*\}/giu

/**
 * Which language a text is in, as far as its script and its commonest words tell. It says "unknown" rather than guess:
 * a title of two rare words is not detected, and a client that knows the language should say so.
 */
export function detectLanguage(text: string): string {
  // The letters of tags and placeholders are of no language.
  const plain = text.replace(MARKUP, ' ')
  const count = (pattern: RegExp) => plain.match(pattern)?.length ?? 0
  const letters = count(/\p{L}/gu)
  if (letters === 0) return UNKNOWN
  const most = (n: number) => n > letters / 2
  const kana = count(/[\p{Script=Hiragana}\p{Script=Katakana}]/gu)
  const han = count(/\p{Script=Han}/gu)
  if (most(kana + han)) return kana > 0 ? 'ja' : chineseOf(plain)
  if (most(count(/\p{Script=Hangul}/gu))) return 'ko'
  if (most(count(/\p{Script=Cyrillic}/gu))) return /[іїєґўђћџјљњѓќѕ]/iu.test(plain) ? UNKNOWN : 'ru'
  return most(count(/\p{Script=Latin}/gu)) ? latinOf(plain) : UNKNOWN
}

function chineseOf(text: string): string {
  let balance = 0
  for (const character of text) {
    const isSimplified = SIMPLIFIED.includes(character)
    const isTraditional = TRADITIONAL.includes(character)
    if (isSimplified !== isTraditional) balance += isTraditional ? 1 : -1
  }
  return balance > 0 ? 'zh-TW' : 'zh-CN'
}

/** The language with more of its common words than any other, or none. */
function latinOf(text: string): string {
  const scores = new Map<string, number>()
  const add = (language: string) => scores.set(language, (scores.get(language) ?? 0) + 1)
  for (const word of text.toLowerCase().match(/\p{L}+/gu) ?? []) {
    for (const language of LANGUAGES_OF.get(word) ?? []) add(language)
  }
  for (const [letters, language] of LETTERS) if (letters.test(text)) add(language)
  const ranked = [...scores].sort((a, b) => b[1] - a[1])
  const [first, second] = ranked
  if (first === undefined || first[1] === second?.[1]) return UNKNOWN
  return first[0]
}

function languagesOf(words: Readonly<Record<string, string>>): Map<string, string[]> {
  const all = new Map<string, string[]>()
  for (const [language, list] of Object.entries(words)) {
    for (const word of list.split(' ')) all.set(word, [...(all.get(word) ?? []), language])
  }
  return all
}

/** Chinese of either script has one label. */
const OWN: Readonly<Record<string, string>> = {
  zh: 'Chinese',
  'zh-cn': 'Chinese',
  'zh-tw': 'Chinese',
  'zh-hk': 'Chinese',
  'zh-hans': 'Chinese',
  'zh-hant': 'Chinese',
}

/** "none": a code that names no language gives undefined rather than itself. */
const NAMES = new Intl.DisplayNames(['en'], { type: 'language', fallback: 'none' })

/** "pt-BR" → "Portuguese"; what is no language code is taken for a label already: "Klingon". */
export function labelOf(code: string): string {
  const own = OWN[code.toLowerCase()]
  if (own !== undefined) return own
  const base = code.split(/[-_]/)[0]!
  if (!/^[a-z]{2,3}$/i.test(base)) return code
  return NAMES.of(base.toLowerCase()) ?? code
}
