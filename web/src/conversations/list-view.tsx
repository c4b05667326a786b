/** The conversations to choose from, by day; each can be named, pinned, shared, exported and deleted. */
import { useEffect, useState } from 'preact/hooks'
import { messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { models } from '../lib/live.ts'
import { hashOf, route } from '../lib/router.ts'
import { exportSession, getSession } from '../lib/sessions.ts'
import { Button, CopyButton, ErrorNote, Loading } from '../parts/basics.tsx'
import { confirmed } from '../parts/dialog.tsx'
import { hidden, panes, showNew } from '../playground/panes.ts'
import { exportText } from './export.ts'
import {
  conversations,
  deleteConversations,
  followConversations,
  listError,
  nameOf,
} from './list.ts'
import { note, noteOf, tagsOf } from './notes.ts'
import { byPeriod, type Conversation } from './periods.ts'

interface ConversationListProps {
  readonly onChoose: () => void
}

export function ConversationList({ onChoose }: ConversationListProps) {
  const [search, setSearch] = useState('')
  const [chosen, setChosen] = useState<ReadonlySet<string> | null>(null)
  const [error, setError] = useState<string | null>(null)
  useEffect(followConversations, [])
  const wanted = search.trim().toLowerCase()
  const list = (conversations.value ?? []).filter((one) =>
    `${nameOf(one)} ${one.id} ${one.model}`.toLowerCase().includes(wanted),
  )
  const run = (action: Promise<void>) => {
    setError(null)
    action.catch((thrown: unknown) => setError(messageOf(thrown)))
  }
  const remove = async (some: readonly Conversation[]) => {
    const text =
      some.length === 1
        ? t('“{name}” and its states are deleted. It cannot be taken back.', {
            name: nameOf(some[0]!),
          })
        : t('{n} conversations and their states are deleted. It cannot be taken back.', {
            n: some.length,
          })
    if (!(await confirmed(text, t('Delete')))) return
    setChosen(null)
    const [first] = panes.value
    if (some.some(({ model, id }) => first?.sessionId === id && first.model === model)) showNew()
    run(deleteConversations(some))
  }
  const toggle = (one: Conversation) => {
    const next = new Set(chosen)
    if (!next.delete(keyOf(one))) next.add(keyOf(one))
    setChosen(next)
  }
  const isEmpty = conversations.value !== null && conversations.value.length === 0
  return (
    <nav class="conversations" aria-label={t('Conversations')}>
      <div class="conversations-head">
        <Button
          icon="plus"
          kind="primary"
          onClick={() => {
            showNew()
            onChoose()
          }}
        >
          {t('New chat')}
        </Button>
        <span class="spring" />
        {!isEmpty && (
          <Button
            kind="quiet"
            isPressed={chosen !== null}
            onClick={() => setChosen(chosen === null ? new Set() : null)}
          >
            {chosen === null ? t('Select') : t('Done')}
          </Button>
        )}
      </div>
      <input
        type="search"
        aria-label={t('Search the conversations')}
        placeholder={t('Search')}
        value={search}
        onInput={({ currentTarget }) => setSearch(currentTarget.value)}
      />
      <Tags search={search} onSearch={setSearch} />
      {chosen !== null && (
        <div class="row">
          <Button kind="quiet" onClick={() => setChosen(new Set(list.map(keyOf)))}>
            {t('All')}
          </Button>
          <span class="spring" />
          <Button
            icon="trash"
            kind="danger"
            isDisabled={chosen.size === 0}
            onClick={() => void remove(list.filter((one) => chosen.has(keyOf(one))))}
          >
            {t('Delete {n}', { n: chosen.size })}
          </Button>
        </div>
      )}
      {error !== null && <ErrorNote text={error} />}
      {listError.value !== null && <ErrorNote text={listError.value} />}
      <div class="conversations-body">
        {conversations.value === null && listError.value === null && <Waiting />}
        {isEmpty && <p class="muted">{t('What you talk about is listed here.')}</p>}
        {!isEmpty && wanted !== '' && list.length === 0 && (
          <p class="muted">{t('Nothing found')}</p>
        )}
        {byPeriod(list, isPinned, new Date()).map(([period, some]) => (
          <section key={period}>
            <h2>{t(period)}</h2>
            <ul>
              {some.map((one) => (
                <Item
                  key={keyOf(one)}
                  one={one}
                  isChosen={chosen === null ? null : chosen.has(keyOf(one))}
                  onToggle={() => toggle(one)}
                  onOpen={onChoose}
                  onRun={run}
                  onDelete={() => void remove([one])}
                />
              ))}
            </ul>
          </section>
        ))}
      </div>
    </nav>
  )
}

interface TagsProps {
  readonly search: string
  readonly onSearch: (search: string) => void
}

/** Words of names that begin with #: pressed, only those with that word are listed. */
function Tags({ search, onSearch }: TagsProps) {
  const tags = tagsOf((conversations.value ?? []).map(nameOf))
  if (tags.length === 0) return null
  return (
    <div class="row tags">
      {tags.map((tag) => (
        <Button
          key={tag}
          kind="chip"
          isPressed={search === tag}
          onClick={() => onSearch(search === tag ? '' : tag)}
        >
          {tag}
        </Button>
      ))}
    </div>
  )
}

function Waiting() {
  return models.value === null ? <Loading /> : null
}

function keyOf({ model, id }: Conversation): string {
  return `${model}/${id}`
}

function isPinned({ model, id }: Conversation): boolean {
  return noteOf(model, id)?.isPinned === true
}

interface ItemProps {
  readonly one: Conversation
  /** Null while none are being chosen. */
  readonly isChosen: boolean | null
  readonly onToggle: () => void
  readonly onOpen: () => void
  readonly onRun: (action: Promise<void>) => void
  readonly onDelete: () => void
}

function Item({ one, isChosen, onToggle, onOpen, onRun, onDelete }: ItemProps) {
  const [isOpen, setOpen] = useState(false)
  const [draft, setDraft] = useState<string | null>(null)
  const { model, id } = one
  const { argument, rest } = route.value
  const isHere = argument === model && rest[0] === id
  const name = nameOf(one)
  if (draft !== null) {
    const save = (event: Event) => {
      event.preventDefault()
      note(model, id, { name: draft.trim() })
      setDraft(null)
    }
    return (
      <li>
        <form class="row renaming" onSubmit={save}>
          <input
            ref={takeFocus}
            aria-label={t('Name')}
            value={draft}
            maxLength={120}
            onInput={({ currentTarget }) => setDraft(currentTarget.value)}
            onKeyDown={(event) => event.key === 'Escape' && setDraft(null)}
          />
          <Button icon="check" kind="quiet" label={t('Save')} type="submit" />
        </form>
      </li>
    )
  }
  return (
    <li class={isHere ? 'here' : ''}>
      <div class="conversation">
        {isChosen !== null && (
          <input type="checkbox" aria-label={name} checked={isChosen} onChange={onToggle} />
        )}
        <a
          href={hashOf('playground', model, id)}
          aria-current={isHere ? 'page' : undefined}
          title={`${name} · ${model}`}
          onClick={onOpen}
        >
          {name}
        </a>
        {isAnswering(one) && <span class="spinner" role="img" aria-label={t('writing')} />}
        {isChosen === null && (
          <Button
            icon="more"
            kind="quiet"
            label={t('More about {name}', { name })}
            isPressed={isOpen}
            onClick={() => setOpen(!isOpen)}
          />
        )}
      </div>
      {isOpen && isChosen === null && (
        <div class="conversation-actions">
          <Button
            icon="edit"
            kind="quiet"
            label={t('Rename')}
            onClick={() => {
              setOpen(false)
              setDraft(name)
            }}
          />
          <Button
            icon="pin"
            kind="quiet"
            label={isPinned(one) ? t('Unpin') : t('Pin')}
            isPressed={isPinned(one)}
            onClick={() => note(model, id, { isPinned: !isPinned(one) })}
          />
          <CopyButton icon="link" title={t('Copy the link')} text={() => addressOf(one)} />
          <Button
            icon="docs"
            kind="quiet"
            label={t('Export as text')}
            onClick={() => onRun(exportText(model, id, name))}
          />
          <Button
            icon="download"
            kind="quiet"
            label={t('Export as a state')}
            onClick={() => onRun(exportState(one))}
          />
          <Button icon="trash" kind="quiet" label={t('Delete')} onClick={onDelete} />
        </div>
      )}
    </li>
  )
}

const takeFocus = (element: HTMLInputElement | null) => element?.focus()

function isAnswering({ model, id }: Conversation): boolean {
  return [...panes.value, ...hidden.value].some(
    (pane) => pane.sessionId === id && pane.model === model && pane.isBusy.value,
  )
}

function addressOf({ model, id }: Conversation): string {
  return `${location.origin}${location.pathname}${hashOf('playground', model, id)}`
}

async function exportState({ model, id }: Conversation): Promise<void> {
  const { head } = await getSession(model, id, AbortSignal.timeout(30_000))
  await exportSession(model, id, head)
}
