/** An answer with its code set apart. Text nodes only, whatever the text says. */
import { blocksOf, type Span, spansOf } from '../lib/rich-text.ts'
import { CopyButton } from './basics.tsx'

export function RichText({ text }: { readonly text: string }) {
  return (
    <>
      {blocksOf(text).map((block, i) =>
        // Blocks are only ever appended.
        block.type === 'code' ? (
          <div key={i} class="code">
            <div class="code-head">
              <small>{block.language}</small>
              <CopyButton text={() => block.text} />
            </div>
            <pre>{block.text}</pre>
          </div>
        ) : (
          <p key={i} class="text">
            {spansOf(block.text).map((span, j) => (
              <SpanView key={j} span={span} />
            ))}
          </p>
        ),
      )}
    </>
  )
}

function SpanView({ span: { type, text } }: { readonly span: Span }) {
  if (type === 'code') return <code>{text}</code>
  if (type === 'plain') return <>{text}</>
  return <strong>{text}</strong>
}
