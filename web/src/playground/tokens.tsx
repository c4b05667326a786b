/** An answer as tokens, shaded by probability, each with its alternatives. */
import { useEffect, useRef, useState } from 'preact/hooks'
import { percent } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import type { TokenView } from '../lib/wire.ts'

export function Tokens({ tokens }: { readonly tokens: readonly TokenView[] }) {
  const [at, setAt] = useState<number | null>(null)
  const list = useRef<HTMLDivElement>(null)
  const token = at === null ? undefined : tokens[at]
  const chosen = useRef<HTMLDivElement>(null)
  // Scroll only for keyboard and touch; a passing pointer must not make the page jump.
  useEffect(() => {
    const isFocused = list.current?.contains(document.activeElement) === true
    if (at !== null && isFocused) chosen.current?.scrollIntoView({ block: 'nearest' })
  }, [at])
  const move = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (by === undefined) return
    event.preventDefault()
    const next = Math.min(Math.max((at ?? 0) + by, 0), tokens.length - 1)
    setAt(next)
    const element = list.current?.children[next]
    if (element instanceof HTMLElement) element.focus()
  }
  return (
    <div class="token-view">
      <div
        ref={list}
        class="token-list"
        role="toolbar"
        aria-label={t('Tokens; move with the arrow keys')}
        onKeyDown={move}
      >
        {tokens.map((one, i) => (
          <button
            // Tokens are only ever appended.
            key={i}
            type="button"
            class={`token p${shadeOf(one.logprob)}`}
            tabIndex={i === (at ?? 0) ? 0 : -1}
            aria-label={`${one.token} ${percent(Math.exp(one.logprob))}`}
            aria-pressed={i === at}
            onFocus={() => setAt(i)}
            onClick={() => setAt(i)}
            onPointerEnter={() => setAt(i)}
          >
            {visible(one.token)}
          </button>
        ))}
      </div>
      <div ref={chosen}>{token && <Alternatives token={token} />}</div>
    </div>
  )
}

function Alternatives({ token }: { readonly token: TokenView }) {
  const isListed = token.top.some((one) => one.token === token.token)
  const rows = isListed ? token.top : [token, ...token.top]
  return (
    <ol class="alternatives" aria-live="polite">
      {rows.map(({ token: text, logprob }, i) => (
        // Two tokens may have the same text.
        <li key={i} class={text === token.token ? 'drawn' : ''}>
          <code>{visible(text)}</code>
          <meter min={0} max={1} value={Math.exp(logprob)} />
          <span>{percent(Math.exp(logprob))}</span>
        </li>
      ))}
    </ol>
  )
}

/** 0 (unlikely) to 4 (almost certain). */
function shadeOf(logprob: number): number {
  const probability = Math.exp(logprob)
  return [0.05, 0.25, 0.6, 0.9].filter((bound) => probability >= bound).length
}

function visible(token: string): string {
  return token
    .replaceAll('\n', '⏎')
    .replaceAll('\t', '⇥')
    .replace(/^ +$/, (s) => '·'.repeat(s.length))
}
