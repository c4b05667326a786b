/** A worker's live log, with search, pause and copy. */
import { useEffect, useState } from 'preact/hooks'
import { request } from '../lib/api.ts'
import { waitBefore } from '../lib/backoff.ts'
import { messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { logStreamPath } from '../lib/management.ts'
import { readEvents } from '../lib/sse.ts'
import { Button, CopyButton, ErrorNote } from '../parts/basics.tsx'
import { useFollowedEnd } from '../parts/followed-end.ts'

const TAIL = 500
/** The number of lines that the server keeps. */
const MOST_LINES = 5000

interface WorkerLogProps {
  readonly id: string
  readonly isEnded: boolean
}

export function WorkerLog({ id, isEnded }: WorkerLogProps) {
  const { lines, error } = useLines(id, isEnded)
  const [search, setSearch] = useState('')
  const [frozen, setFrozen] = useState<readonly string[] | null>(null)
  const end = useFollowedEnd()
  const all = frozen ?? lines
  const wanted = search.toLowerCase()
  const shown = search === '' ? all : all.filter((line) => line.toLowerCase().includes(wanted))

  useEffect(() => end.update())
  return (
    <section class="log" aria-label={t('Log')}>
      <div class="log-head">
        <input
          type="search"
          placeholder={t('Search the log')}
          aria-label={t('Search the log')}
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
        <small>
          {t('{n} lines', { n: shown.length })}
          {frozen !== null && lines.length > frozen.length && ` · +${lines.length - frozen.length}`}
        </small>
        <Button
          icon={frozen === null ? 'pause' : 'play'}
          kind="quiet"
          isPressed={frozen !== null}
          onClick={() => setFrozen(frozen === null ? lines : null)}
        >
          {frozen === null ? t('Pause') : t('Resume')}
        </Button>
        <CopyButton text={() => shown.join('\n')} label={t('Copy')} />
      </div>
      {error !== null && <ErrorNote text={error} />}
      {/* A region that scrolls must be reachable by keyboard. */}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
      <pre ref={end.attach} tabIndex={0} onScroll={end.onScroll}>
        {shown.length === 0 ? t('No lines') : shown.join('\n')}
      </pre>
    </section>
  )
}

function useLines(id: string, isEnded: boolean) {
  const [lines, setLines] = useState<readonly string[]>([])
  const [error, setError] = useState<string | null>(null)
  useEffect(() => {
    const abort = new AbortController()
    void followLog(id, abort.signal, setLines, setError)
    return () => abort.abort()
    // A restarted worker has a new stream.
  }, [id, isEnded])
  return { lines, error }
}

async function followLog(
  id: string,
  stop: AbortSignal,
  onLines: (lines: readonly string[]) => void,
  onError: (error: string | null) => void,
): Promise<void> {
  for (let failures = 0; !stop.aborted; failures++) {
    if (failures > 0) await new Promise((go) => setTimeout(go, waitBefore(failures)))
    try {
      const reply = await request(logStreamPath(id, TAIL), { signal: stop })
      onError(null)
      let lines: readonly string[] = []
      for await (const { event, data } of readEvents(reply.body!)) {
        if (event !== 'log') continue
        // `contract.ts`: an event "log" has one line.
        lines = [...lines.slice(1 - MOST_LINES), (JSON.parse(data) as { line: string }).line]
        onLines(lines)
        failures = 0
      }
    } catch (thrown) {
      if (!stop.aborted) onError(messageOf(thrown))
    }
  }
}
