/**
 * Renders Markdown as text nodes and a fixed set of tags, whatever the text contains. Finished blocks are not rendered
 * again while the last one grows.
 */
import type { Token, Tokens } from 'marked'
import type { ComponentChildren, JSX } from 'preact'
import { memo } from 'preact/compat'
import { CodeBlock } from './code-block.tsx'
import { Maths } from './maths.tsx'
import { decoded, type MathToken, parse, safeAddress } from './parse.ts'

interface MarkdownProps {
  readonly text: string
  readonly isWrapped?: boolean
}

export function Markdown({ text, isWrapped = false }: MarkdownProps) {
  const tokens = parse(text, isWrapped).filter(({ type }) => type !== 'space' && type !== 'def')
  const top = Math.min(...tokens.map(depthOf))
  return (
    <>
      {tokens.map((token, i) => (
        // Blocks are only ever appended.
        <Block key={i} token={token} raw={token.raw} top={top} />
      ))}
    </>
  )
}

/** Infinity for other blocks. */
function depthOf(token: Token): number {
  return token.type === 'heading' ? (token as Tokens.Heading).depth : Number.POSITIVE_INFINITY
}

interface BlockProps {
  readonly token: Token
  /** The source determines the whole block. */
  readonly raw: string
  /** Depth of the highest heading of the text; it is shown one level below the page's. */
  readonly top: number
}

const Block = memo(
  ({ token, top }: BlockProps) => blockOf(token, top),
  (before, after) => before.raw === after.raw && before.top === after.top,
)

type Heading = 'h2' | 'h3' | 'h4' | 'h5' | 'h6'

function blockOf(token: Token, top = 1): JSX.Element | null {
  // The lexer's types are those of its token names; a generic token may be any of them.
  switch (token.type) {
    case 'heading': {
      const { depth, tokens } = token as Tokens.Heading
      const Tag = `h${Math.min(depth - top + 2, 6)}` as Heading // 2 to 6
      return <Tag class={`level-${depth}`}>{inline(tokens)}</Tag>
    }
    case 'paragraph':
      return <p class="text">{inline((token as Tokens.Paragraph).tokens)}</p>
    case 'text': {
      const { tokens, text } = token as Tokens.Text
      return <>{tokens === undefined ? decoded(text) : inline(tokens)}</>
    }
    case 'code': {
      const { text, lang = '' } = token as Tokens.Code
      return <CodeBlock text={text} language={lang.split(/\s/, 1)[0]!} />
    }
    case 'blockquote':
      return <blockquote>{blocks((token as Tokens.Blockquote).tokens)}</blockquote>
    case 'list':
      return <List list={token as Tokens.List} />
    case 'table':
      return <Table table={token as Tokens.Table} />
    case 'hr':
      return <hr />
    case 'maths':
      return <Maths text={(token as MathToken).text} raw={token.raw} isBlock />
    case 'html':
      return <p class="text">{token.raw.trim()}</p>
    case 'space':
    case 'def':
      return null
    default:
      return <p class="text">{token.raw}</p>
  }
}

function blocks(tokens: readonly Token[] | undefined): ComponentChildren {
  return tokens?.map((token, i) => <Block key={i} token={token} raw={token.raw} top={1} />)
}

function List({ list: { ordered, start, items } }: { readonly list: Tokens.List }) {
  const rows = items.map((item, i) => (
    <li key={i} class={item.task ? 'task' : ''}>
      {item.task && <span role="img" aria-label={item.checked ? '✓' : '–'} class="box" />}
      {item.task && item.checked && <span aria-hidden="true" class="tick" />}
      {blocks(item.tokens.filter(({ type }) => type !== 'checkbox'))}
    </li>
  ))
  return ordered ? <ol start={start === '' ? 1 : start}>{rows}</ol> : <ul>{rows}</ul>
}

function Table({ table: { header, rows } }: { readonly table: Tokens.Table }) {
  const alignOf = ({ align }: Tokens.TableCell) => (align === null ? '' : `to-${align}`)
  return (
    // A region that scrolls must be reachable by keyboard.
    // biome-ignore lint/a11y/noNoninteractiveTabindex: see above
    <div class="table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {header.map((cell, i) => (
              <th key={i} scope="col" class={alignOf(cell)}>
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, j) => (
                <td key={j} class={alignOf(cell)}>
                  {inline(cell.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

function inline(tokens: readonly Token[] | undefined): ComponentChildren {
  return tokens?.map(inlineOf)
}

function inlineOf(token: Token, i: number): ComponentChildren {
  switch (token.type) {
    case 'text':
    case 'escape': {
      const { tokens, text } = token as Tokens.Text
      return tokens === undefined ? decoded(text) : inline(tokens)
    }
    case 'strong':
      return <strong key={i}>{inline((token as Tokens.Strong).tokens)}</strong>
    case 'em':
      return <em key={i}>{inline((token as Tokens.Em).tokens)}</em>
    case 'del':
      return <del key={i}>{inline((token as Tokens.Del).tokens)}</del>
    case 'codespan':
      return <code key={i}>{(token as Tokens.Codespan).text}</code>
    case 'br':
      return <br key={i} />
    case 'link': {
      const { href, tokens } = token as Tokens.Link
      return <Link key={i} href={href} children={inline(tokens)} />
    }
    case 'image': {
      // Nothing is loaded from elsewhere.
      const { href, text } = token as Tokens.Image
      return <Link key={i} href={href} children={text || href} />
    }
    case 'maths': {
      const { text, isBlock } = token as MathToken
      return <Maths key={i} text={text} raw={token.raw} isBlock={isBlock} />
    }
    default:
      return token.raw
  }
}

function Link({ href, children }: { readonly href: string; readonly children: ComponentChildren }) {
  const address = safeAddress(href)
  if (address === null) return <>{children}</>
  return (
    <a href={address} target="_blank" rel="noopener noreferrer" title={address}>
      {children}
    </a>
  )
}
