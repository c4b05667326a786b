/** Renders Markdown. Shows plain text until the code that reads Markdown is loaded. */
import { signal } from '@preact/signals'
import type { Markdown } from '../markdown/markdown.tsx'

const reader = signal<typeof Markdown | null>(null)

/** Resolves even if the code cannot be loaded; the next call tries again. */
export async function loadMarkdown(): Promise<void> {
  if (reader.value !== null) return
  await import('../markdown/markdown.tsx').then(
    (module) => {
      reader.value = module.Markdown
    },
    () => {},
  )
}

interface RichTextProps {
  readonly text: string
  /** Line ends are spaces. */
  readonly isWrapped?: boolean
}

export function RichText({ text, isWrapped = false }: RichTextProps) {
  const { value: Reader } = reader
  if (Reader !== null) return <Reader text={text} isWrapped={isWrapped} />
  void loadMarkdown()
  return text === '' ? null : <p class="text">{text}</p>
}
