/**
 * The little of Markdown that models write all the time and that is hard to read raw: fenced code, `code`, **bold** and
 * headings. All else is left as it is written. It makes parts, never markup; an answer that is still growing has its last
 * fence open.
 */

export type Block =
  | { readonly type: 'code'; readonly language: string; readonly text: string }
  | { readonly type: 'text'; readonly text: string }

export interface Span {
  readonly type: 'plain' | 'code' | 'bold' | 'heading'
  readonly text: string
}

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/

/** The lines between fences are code; blank lines at the edges of text go. */
export function blocksOf(text: string): Block[] {
  const blocks: Block[] = []
  let lines: string[] = []
  let fence: { readonly mark: string; readonly language: string } | null = null
  const end = () => {
    const joined = lines.join('\n')
    lines = []
    if (fence !== null) blocks.push({ type: 'code', language: fence.language, text: joined })
    else if (joined.trim() !== '')
      blocks.push({ type: 'text', text: joined.replace(/^\n+|\n+$/g, '') })
  }
  for (const line of text.split('\n')) {
    const [, mark, rest] = FENCE.exec(line) ?? []
    if (mark === undefined || rest === undefined) lines.push(line)
    else if (fence === null) {
      end()
      fence = { mark, language: rest.trim() }
    } else if (mark.startsWith(fence.mark) && rest.trim() === '') {
      end()
      fence = null
    } else lines.push(line)
  }
  end()
  return blocks
}

const SPANS = /(`+)(?!`)(.+?)(?<!`)\1(?!`)|\*\*(?=\S)(.+?\S?)\*\*/g

/** Of a text block. What a mark opens and nothing closes stays as it is. */
export function spansOf(text: string): Span[] {
  return text.split(/^(#{1,6} .*\n?)/m).flatMap((piece) => {
    const heading = /^#{1,6} (.*\n?)$/.exec(piece)
    return heading === null ? inlineSpans(piece) : [{ type: 'heading', text: heading[1]! } as const]
  })
}

function inlineSpans(text: string): Span[] {
  const spans: Span[] = []
  let at = 0
  for (const match of text.matchAll(SPANS)) {
    const [all, , code, bold] = match
    if (match.index > at) spans.push({ type: 'plain', text: text.slice(at, match.index) })
    spans.push(code === undefined ? { type: 'bold', text: bold! } : { type: 'code', text: code })
    at = match.index + all.length
  }
  if (at < text.length) spans.push({ type: 'plain', text: text.slice(at) })
  return spans
}
