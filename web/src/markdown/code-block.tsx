/** A code block: its language, a copy button, and syntax colours once they are loaded. */
import type { ElementContent, Root } from 'hast'
import type { ComponentChildren } from 'preact'
import { memo } from 'preact/compat'
import { useEffect, useState } from 'preact/hooks'
import { CopyButton } from '../parts/basics.tsx'

/** Longer code is not coloured: colouring it again with every piece would block the page. */
const MOST_COLOURED = 30_000

type Colour = (text: string, language: string) => Root | null

let coming: Promise<Colour> | null = null

function colours(): Promise<Colour> {
  coming ??= import('./colours.ts').then(({ colour }) => colour)
  return coming
}

interface CodeBlockProps {
  readonly text: string
  readonly language: string
}

export const CodeBlock = memo(({ text, language }: CodeBlockProps) => {
  const colour = useColour(language !== '' && text.length <= MOST_COLOURED)
  const tree = colour?.(text, language) ?? null
  return (
    <div class="code">
      <div class="code-head">
        <small>{language}</small>
        <CopyButton text={() => text} />
      </div>
      {/* A region that scrolls must be reachable by keyboard. */}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
      <pre tabIndex={0}>{tree === null ? text : nodes(tree.children)}</pre>
    </div>
  )
})

function useColour(isWanted: boolean): Colour | null {
  const [colour, setColour] = useState<Colour | null>(null)
  useEffect(() => {
    if (!isWanted || colour !== null) return
    // The code is readable without colours.
    colours().then(
      (come) => setColour(() => come),
      () => {},
    )
  }, [isWanted])
  return isWanted ? colour : null
}

function nodes(children: Root['children'] | readonly ElementContent[]): ComponentChildren {
  return children.map((child, i) => {
    if (child.type === 'text') return child.value
    if (child.type !== 'element') return null
    const { className } = child.properties
    return (
      <span key={i} class={Array.isArray(className) ? className.join(' ') : ''}>
        {nodes(child.children)}
      </span>
    )
  })
}
