/**
 * What must come through a translation unchanged: HTML tags, and the placeholders that a client put where a page has
 * images, links or numbers. A model may lose or bend one; then the text between them is translated piece by piece.
 */

const USUAL = /<\/?[A-Za-z][^<>]*>|\{\{[^{}]*\}\}|\{\d+\}/g

/** The text around the number of a placeholder: left, right and, for paired tags, the tag's name. */
export interface Delimiters {
  readonly left: string
  readonly right: string
  readonly tag: string
}

/** The delimiters that Immersive Translate sends; null without any. */
export function delimitersOf([left = '', right = '', tag = '']: readonly string[]): Delimiters | null {
  return left === '' ? null : { left, right, tag }
}

/** Text and marks in turn, text first: "a<b>c" → ["a", "<b>", "c"]. */
export function splitAtMarks(text: string, delimiters: Delimiters | null): string[] {
  const parts: string[] = []
  let from = 0
  for (const [start, end] of marksIn(text, delimiters)) {
    parts.push(text.slice(from, start), text.slice(start, end))
    from = end
  }
  return [...parts, text.slice(from)]
}

export function withoutMarks(text: string, delimiters: Delimiters | null): string {
  return splitAtMarks(text, delimiters)
    .filter((_, i) => i % 2 === 0)
    .join('')
}

/** Whether both have the same marks, each as often; translation may move them. */
export function hasSameMarks(source: string, translation: string, delimiters: Delimiters | null) {
  const sorted = (text: string) =>
    splitAtMarks(text, delimiters)
      .filter((_, i) => i % 2 === 1)
      .sort()
      .join('\0')
  return sorted(source) === sorted(translation)
}

type Span = readonly [start: number, end: number]

/** In order; where two begin at one place, that of the request. Each part of the text is looked at once. */
function* marksIn(text: string, delimiters: Delimiters | null): Generator<Span> {
  const own = delimiters === null ? () => null : (from: number) => nextOwn(text, delimiters, from)
  let at = 0
  let [mine, usual] = [own(0), nextUsual(text, 0)]
  while (mine !== null || usual !== null) {
    const isMine = mine !== null && (usual === null || mine[0] <= usual[0])
    // One of the two exists.
    const mark = (isMine ? mine : usual) as Span
    yield mark
    at = mark[1]
    if (mine !== null && mine[0] < at) mine = own(at)
    if (usual !== null && usual[0] < at) usual = nextUsual(text, at)
  }
}

function nextUsual(text: string, from: number): Span | null {
  USUAL.lastIndex = from
  const match = USUAL.exec(text)
  return match === null ? null : [match.index, USUAL.lastIndex]
}

/** Left, perhaps "/", the tag's name, digits, right. By hand: a pattern made of what a client sends can take hours. */
function nextOwn(text: string, { left, right, tag }: Delimiters, from: number): Span | null {
  for (let start = text.indexOf(left, from); start >= 0; start = text.indexOf(left, start + 1)) {
    const inside = start + left.length
    const begins = text[inside] === '/' ? [inside + 1, inside] : [inside]
    for (const begin of begins) {
      if (!text.startsWith(tag, begin)) continue
      const digits = begin + tag.length
      const end = endOfDigits(text, digits)
      if (end > digits && text.startsWith(right, end)) return [start, end + right.length]
    }
  }
  return null
}

function endOfDigits(text: string, start: number): number {
  let end = start
  while (text[end]! >= '0' && text[end]! <= '9') end++
  return end
}
