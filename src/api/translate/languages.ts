/** Language codes as clients write them, to the English names that RWKV's translation data labels texts with. */

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
