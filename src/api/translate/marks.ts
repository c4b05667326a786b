/**
 * What must come through a translation unchanged: HTML tags, and the placeholders that a client put where a page has
 * images, links or numbers. A model may lose or bend one; then the text between them is translated piece by piece.
 */

const HTML_TAG = '</?[A-Za-z][^<>]*>'
const USUAL = [HTML_TAG, '\\{\\{[^{}]*\\}\\}', '\\{\\d+\\}']

/** `delimiters` as Immersive Translate has them: left, right and, for paired tags, the tag's name. */
export function marksPattern(delimiters: readonly string[] | null): RegExp {
  const [left = '', right = '', tag = ''] = delimiters ?? []
  const own = left === '' ? [] : [`${literal(left)}/?${literal(tag)}\\d+${literal(right)}`]
  return new RegExp([...own, ...USUAL].join('|'), 'g')
}

function literal(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/-]/g, '\\$&')
}

/** Whether both have the same marks, each as often; translation may move them. */
export function hasSameMarks(source: string, translation: string, marks: RegExp): boolean {
  const sorted = (text: string) => [...(text.match(marks) ?? [])].sort().join('\0')
  return sorted(source) === sorted(translation)
}

/** Text and marks in turn, text first: "a<b>c" → ["a", "<b>", "c"]. */
export function splitAtMarks(text: string, marks: RegExp): string[] {
  return text.split(new RegExp(`(${marks.source})`, 'g'))
}
