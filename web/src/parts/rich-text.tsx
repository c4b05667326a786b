/** An answer as the Markdown that it is; plain until the code that reads Markdown has come, which is asked for early. */
import { signal } from '@preact/signals'
import type { Markdown } from '../markdown/markdown.tsx'

const reader = signal<typeof Markdown | null>(null)

/** Again with the next answer where it could not be loaded. */
export function loadMarkdown(): void {
  if (reader.value !== null) return
  import('../markdown/markdown.tsx').then(
    (module) => {
      reader.value = module.Markdown
    },
    () => {},
  )
}

interface RichTextProps {
  readonly text: string
  /** The ends of its lines mean nothing. */
  readonly isWrapped?: boolean
}

export function RichText({ text, isWrapped = false }: RichTextProps) {
  const { value: Reader } = reader
  if (Reader !== null) return <Reader text={text} isWrapped={isWrapped} />
  loadMarkdown()
  return text === '' ? null : <p class="text">{text}</p>
}
