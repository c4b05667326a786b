/** Sessions of this key: size, tier and turns. An opened session shows its tree and the actions for each turn. */
import { signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import { followConversations, nameOf } from '../conversations/list.ts'
import { messageOf } from '../lib/errors.ts'
import { age, bytes } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { models } from '../lib/live.ts'
import { goTo, hashOf, route } from '../lib/router.ts'
import {
  deleteSession,
  exportSession,
  forkSession,
  headTurn,
  listSessions,
  rewindSession,
  type Session,
  turnNodes,
} from '../lib/sessions.ts'
import { Badge, Button, Empty, ErrorNote, Loading, NoModel } from '../parts/basics.tsx'
import { confirmed } from '../parts/dialog.tsx'
import { useResource } from '../parts/resource.ts'
import { TreeView } from '../parts/tree-view.tsx'
import { ImportDialog, NameDialog } from './session-dialogs.tsx'

const chosen = signal<string | null>(null)

export function SessionsPage() {
  const entries = (models.value ?? []).filter(({ root }) => root === undefined)
  const names = entries.map(({ id }) => id)
  const model = names.find((name) => name === chosen.value) ?? names[0] ?? null
  const [isImporting, setImporting] = useState(false)
  useEffect(followConversations, [])
  const sessions = useResource(
    async (abort) => ({ model, list: model === null ? [] : await listSessions(model, abort) }),
    // A loading model refuses the call; it is fetched again when its state changes.
    [model, entries.find(({ id }) => id === model)?.state],
  )
  // Do not show the previous model's sessions while this model's are loading or failed to load.
  const list = sessions.value?.model === model ? sessions.value.list : null
  return (
    <>
      <div class="page-head">
        <h1>{t('Sessions')}</h1>
        <select
          aria-label={t('Model')}
          value={model ?? ''}
          onChange={({ currentTarget }) => {
            chosen.value = currentTarget.value
          }}
        >
          {model === null && <option value="">{t('No model')}</option>}
          {names.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <Button icon="again" label={t('Refresh')} onClick={sessions.refresh} />
        <Button icon="upload" isDisabled={model === null} onClick={() => setImporting(true)}>
          {t('Import')}
        </Button>
      </div>
      {sessions.error !== null && <ErrorNote text={sessions.error} onRetry={sessions.refresh} />}
      {(list !== null || sessions.error === null) && (
        <List key={model} sessions={list} model={model} onChange={sessions.refresh} />
      )}
      {isImporting && model !== null && (
        <ImportDialog
          model={model}
          onClose={() => {
            setImporting(false)
            sessions.refresh()
          }}
        />
      )}
    </>
  )
}

interface ListProps {
  readonly sessions: readonly Session[] | null
  readonly model: string | null
  readonly onChange: () => void
}

function List({ sessions, model, onChange }: ListProps) {
  if (model === null) return <NoModel />
  if (sessions === null) return <Loading />
  if (sessions.length === 0) {
    return (
      <Empty title={t('No sessions')}>
        <p>{t('Conversations of the playground, and requests with a session_id, appear here.')}</p>
      </Empty>
    )
  }
  const open = sessions.find(({ id }) => id === route.value.argument)
  return (
    <div class={open ? 'split' : ''}>
      <table class="list sessions">
        <thead>
          <tr>
            <th scope="col">{t('Session')}</th>
            <th scope="col" class="number">
              {t('Turns')}
            </th>
            <th scope="col" class="number">
              {t('Tokens')}
            </th>
            <th scope="col" class="number">
              {t('Size')}
            </th>
            <th scope="col">{t('Tier')}</th>
            <th scope="col" class="number">
              {t('Used')}
            </th>
          </tr>
        </thead>
        <tbody>
          {sessions.map((session) => (
            <Row key={session.id} session={session} model={model} isOpen={session === open} />
          ))}
        </tbody>
      </table>
      {open && <Opened key={open.id} session={open} model={model} onChange={onChange} />}
    </div>
  )
}

interface RowProps {
  readonly session: Session
  readonly model: string
  readonly isOpen: boolean
}

function Row({ session, model, isOpen }: RowProps) {
  const head = headTurn(session)
  return (
    <tr class={isOpen ? 'open' : ''}>
      <th scope="row">
        <SessionTitle model={model} id={session.id} />
        <a href={hashOf('sessions', isOpen ? null : session.id)} aria-expanded={isOpen}>
          {session.id}
        </a>
        {session.busy && <Badge tone="loading">{t('writing')}</Badge>}
      </th>
      <td class="number">{session.turns.length}</td>
      <td class="number">{head?.tokens ?? 0}</td>
      <td class="number">{bytes(session.bytes)}</td>
      <td>{head === undefined ? '–' : <Tier turn={head} />}</td>
      <td class="number">{t('{time} ago', { time: age(Date.now() / 1000 - session.updated) })}</td>
    </tr>
  )
}

/** The first words, or the name given by the user. */
function SessionTitle({ model, id }: { readonly model: string; readonly id: string }) {
  const name = nameOf({ model, id })
  return name === id ? null : <b class="session-name">{name}</b>
}

function Tier({ turn }: { readonly turn: { tier: 'device' | 'memory' | 'disk'; saved: boolean } }) {
  return (
    <span class="tier">
      <Badge tone={turn.tier}>{t(turn.tier)}</Badge>
      {!turn.saved && <small class="muted">{t('not saved')}</small>}
    </span>
  )
}

interface OpenedProps {
  readonly session: Session
  readonly model: string
  readonly onChange: () => void
}

function Opened({ session, model, onChange }: OpenedProps) {
  const { id, head } = session
  const [selected, setSelected] = useState(head)
  const [error, setError] = useState<string | null>(null)
  const [isForking, setForking] = useState(false)
  const section = useRef<HTMLElement>(null)
  // On a narrow page this is below the list.
  useEffect(() => section.current?.scrollIntoView({ block: 'nearest' }), [])
  const showError = (thrown: unknown) => setError(messageOf(thrown))
  const run = (action: Promise<void>) => {
    setError(null)
    action.then(onChange).catch(showError)
  }
  const remove = async () => {
    const text = t('{id} is deleted from every tier. This cannot be undone.', { id })
    if (await confirmed(text, t('Delete'))) run(deleteSession(model, id))
  }
  return (
    <section ref={section} class="opened" aria-label={id}>
      <h2>{id}</h2>
      <p class="muted">
        {t('version {n}', { n: session.version })} ·{' '}
        {session.expires === null
          ? t('kept until deleted')
          : t('forgotten in {age}', { age: age(session.expires - Date.now() / 1000) })}
      </p>
      {error !== null && <ErrorNote text={error} />}
      <div class="actions">
        <Button icon="playground" onClick={() => void goOnFrom(session, model, selected).catch(showError)}>
          {t('Continue from turn {n}', { n: selected })}
        </Button>
        <Button icon="fork" onClick={() => setForking(true)}>
          {t('Fork')}
        </Button>
        <Button icon="back" isDisabled={selected === head} onClick={() => run(rewindSession(model, id, selected))}>
          {t('Rewind')}
        </Button>
        <Button icon="download" onClick={() => run(exportSession(model, id, selected))}>
          {t('Export')}
        </Button>
        <Button icon="trash" kind="danger" onClick={() => void remove()}>
          {t('Delete')}
        </Button>
      </div>
      <TreeView
        label={t('Turns')}
        nodes={turnNodes(session)}
        head={head}
        selected={selected}
        onSelect={({ turn }) => setSelected(turn)}
        describe={(turn) => (
          <>
            <b>{turn.turn}</b>
            <span>{t('{n} tokens', { n: turn.tokens })}</span>
            <Tier turn={turn} />
            {turn.turn === head && <small class="muted">{t('head')}</small>}
          </>
        )}
      />
      {isForking && (
        <NameDialog
          title={t('Fork from turn {n}', { n: selected })}
          initial={`${id}-${selected}`}
          onClose={() => setForking(false)}
          onName={async (name) => {
            await forkSession(model, id, selected, name)
            onChange()
          }}
        />
      )}
    </section>
  )
}

/** Continuing moves the session's head to the chosen turn. */
async function goOnFrom({ id, head }: Session, model: string, turn: number): Promise<void> {
  if (turn !== head) await rewindSession(model, id, turn)
  goTo('playground', model, id)
}
