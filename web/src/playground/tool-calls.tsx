/** Function calls of the model, their results, and a form to enter results. */
import { useState } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import type { ToolCall } from '../lib/wire.ts'
import { Button } from '../parts/basics.tsx'
import { Icon } from '../parts/icons.tsx'

/** With its arguments as they arrive. */
export function ToolCallView({ call }: { readonly call: ToolCall }) {
  return <Folded title={t('Calls {name}', { name: call.name })} text={indented(call.arguments) ?? call.arguments} />
}

interface ResultsViewProps {
  readonly results: readonly string[]
  readonly calls: readonly ToolCall[]
}

export function ResultsView({ results, calls }: ResultsViewProps) {
  return (
    <div class="tool-results">
      {results.map((result, i) => (
        <Folded
          // Results never move.
          key={i}
          title={t('Result of {name}', { name: calls[i]?.name ?? '' })}
          text={indented(result) ?? result}
        />
      ))}
    </div>
  )
}

function Folded({ title, text }: { readonly title: string; readonly text: string }) {
  return (
    <details class="tool-call" open>
      <summary>
        <Icon name="tool" />
        {title}
      </summary>
      {/* A region that scrolls must be reachable by keyboard. */}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
      <pre tabIndex={0}>{text}</pre>
    </details>
  )
}

interface ResultsFormProps {
  readonly calls: readonly ToolCall[]
  readonly isDisabled: boolean
  readonly onSend: (results: readonly string[]) => void
}

/** The page calls nothing: the user enters what the functions return. */
export function ResultsForm({ calls, isDisabled, onSend }: ResultsFormProps) {
  const [results, setResults] = useState<readonly string[]>(calls.map(() => ''))
  const canSend = !isDisabled && results.every((one) => one.trim() !== '')
  const submit = (event: Event) => {
    event.preventDefault()
    if (canSend) onSend(results)
  }
  return (
    <form class="results-form" onSubmit={submit}>
      {calls.map(({ name }, i) => (
        <textarea
          // Calls never move.
          key={i}
          class="code-field"
          rows={2}
          spellcheck={false}
          aria-label={t('Result of {name}', { name })}
          placeholder={t('Result of {name}', { name })}
          value={results[i]}
          onInput={({ currentTarget }) => setResults(results.with(i, currentTarget.value))}
        />
      ))}
      <Button type="submit" icon="send" isDisabled={!canSend}>
        {t('Send the result')}
      </Button>
    </form>
  )
}

/** Null for text that is not JSON, or not complete yet. */
export function indented(json: string): string | null {
  try {
    return JSON.stringify(JSON.parse(json), null, 2)
  } catch {
    return null
  }
}
