/**
 * Which language a text is in, as far as its script and its commonest words tell. It says "unknown" rather than guess:
 * a title of two rare words is not detected, and a client that knows the language should say so.
 */

export const UNKNOWN = 'unknown'

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

/** Of characters that were simplified, those that were changed most visibly: the two forms side by side. */
const SIMPLIFIED = '们这来时会说学国过对发后样没还书长见问东车马鱼龙门开关点头'
const TRADITIONAL = '們這來時會說學國過對發後樣沒還書長見問東車馬魚龍門開關點頭'

const MARKUP = /<\/?[a-z][^<>]*>|\{[^{}]*\}/giu

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
