/** The list of conversations, in folders and by day. Several can be moved to a folder or deleted at once. */
import { signal } from '@preact/signals'
import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { models } from '../lib/live.ts'
import { Button, ErrorNote, Loading } from '../parts/basics.tsx'
import { confirmed } from '../parts/dialog.tsx'
import { Icon } from '../parts/icons.tsx'
import { panes, showNew } from '../playground/panes.ts'
import { folderOf, ItemView, isPinned } from './item-view.tsx'
import { conversations, deleteConversations, followConversations, listError, nameOf } from './list.ts'
import { NoteForm } from './note-form.tsx'
import { folders, note, tagsOf } from './notes.ts'
import { byPeriod, type Conversation } from './periods.ts'

/** Closed folders, until the page is left. */
const shut = signal<ReadonlySet<string>>(new Set())

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
    `${nameOf(one)} ${folderOf(one)} ${one.id} ${one.model}`.toLowerCase().includes(wanted),
  )
  const some = list.filter((one) => chosen?.has(keyOf(one)) === true)
  const run = (action: Promise<void>) => {
    setError(null)
    action.catch((thrown: unknown) => setError(messageOf(thrown)))
  }
  const remove = async (gone: readonly Conversation[]) => {
    if (!(await confirmed(warningOf(gone), t('Delete')))) return
    setChosen(null)
    const [first] = panes.value
    if (gone.some(({ model, id }) => first?.sessionId === id && first.model === model)) showNew()
    run(deleteConversations(gone))
  }
  const toggle = (one: Conversation) => {
    const next = new Set(chosen)
    if (!next.delete(keyOf(one))) next.add(keyOf(one))
    setChosen(next)
  }
  const select = () => setChosen(chosen === null ? new Set() : null)
  const isEmpty = conversations.value !== null && conversations.value.length === 0
  const items = (shown: readonly Conversation[]) => (
    <ul>
      {shown.map((one) => (
        <ItemView
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
  )
  return (
    <nav
      class="conversations"
      aria-label={t('Conversations')}
      onKeyDown={({ key, target }) => {
        // In a field it is for what was typed.
        if (key === 'Escape' && !(target instanceof HTMLInputElement)) onChoose()
      }}
    >
      <Head isSelecting={isEmpty ? null : chosen !== null} onSelect={select} onChoose={onChoose} />
      <input
        type="search"
        aria-label={t('Search the conversations')}
        placeholder={t('Search')}
        value={search}
        onInput={({ currentTarget }) => setSearch(currentTarget.value)}
      />
      <Tags search={search} onSearch={setSearch} />
      {chosen !== null && (
        <Chosen
          some={some}
          onAll={() => setChosen(new Set(list.map(keyOf)))}
          onMoved={() => setChosen(null)}
          onDelete={() => void remove(some)}
        />
      )}
      {error !== null && <ErrorNote text={error} />}
      {listError.value !== null && <ErrorNote text={listError.value} />}
      <div class="conversations-body">
        {conversations.value === null && listError.value === null && <Waiting />}
        {isEmpty && <p class="muted">{t('Your conversations are listed here.')}</p>}
        {!isEmpty && wanted !== '' && list.length === 0 && <p class="muted">{t('Nothing found')}</p>}
        {folders().map((name) => (
          <Folder key={name} name={name} inside={list.filter((one) => folderOf(one) === name)} items={items} />
        ))}
        {byPeriod(
          list.filter((one) => folderOf(one) === ''),
          isPinned,
          new Date(),
        ).map(([period, shown]) => (
          <section key={period}>
            <h2>{t(period)}</h2>
            {items(shown)}
          </section>
        ))}
      </div>
    </nav>
  )
}

interface HeadProps {
  /** Null: there is nothing to select. */
  readonly isSelecting: boolean | null
  readonly onSelect: () => void
  readonly onChoose: () => void
}

function Head({ isSelecting, onSelect, onChoose }: HeadProps) {
  const begin = () => {
    showNew()
    onChoose()
  }
  return (
    <div class="conversations-head">
      <Button icon="plus" kind="primary" onClick={begin}>
        {t('New chat')}
      </Button>
      <span class="spring" />
      {isSelecting !== null && (
        <Button kind="quiet" isPressed={isSelecting} onClick={onSelect}>
          {isSelecting ? t('Done') : t('Select')}
        </Button>
      )}
      <span class="only-narrow">
        <Button icon="close" kind="quiet" label={t('Close')} onClick={onChoose} />
      </span>
    </div>
  )
}

interface ChosenProps {
  readonly some: readonly Conversation[]
  readonly onAll: () => void
  readonly onMoved: () => void
  readonly onDelete: () => void
}

/** What is done with those that are chosen. */
function Chosen({ some, onAll, onMoved, onDelete }: ChosenProps) {
  const [isMoving, setMoving] = useState(false)
  const move = (folder: string) => {
    for (const { model, id } of some) note(model, id, { folder })
    onMoved()
  }
  if (isMoving) return <NoteForm kind="folder" value="" onSave={move} onCancel={() => setMoving(false)} />
  const isNone = some.length === 0
  return (
    <div class="row">
      <Button kind="quiet" onClick={onAll}>
        {t('All')}
      </Button>
      <span class="spring" />
      <Button icon="folder" label={t('Put into a folder')} isDisabled={isNone} onClick={() => setMoving(true)} />
      <Button icon="trash" kind="danger" isDisabled={isNone} onClick={onDelete}>
        {t('Delete {n}', { n: some.length })}
      </Button>
    </div>
  )
}

function warningOf(gone: readonly Conversation[]): string {
  const [only] = gone
  return gone.length === 1
    ? t('“{name}” and its states are deleted. This cannot be undone.', { name: nameOf(only!) })
    : t('{n} conversations and their states are deleted. This cannot be undone.', { n: gone.length })
}

interface FolderProps {
  readonly name: string
  readonly inside: readonly Conversation[]
  readonly items: (shown: readonly Conversation[]) => JSX.Element
}

function Folder({ name, inside, items }: FolderProps) {
  if (inside.length === 0) return null
  const onToggle = ({ currentTarget }: { readonly currentTarget: HTMLDetailsElement }) => {
    const next = new Set(shut.value)
    if (currentTarget.open) next.delete(name)
    else next.add(name)
    if (next.size !== shut.value.size) shut.value = next
  }
  const pinnedFirst = [...inside].sort((a, b) => Number(isPinned(b)) - Number(isPinned(a)))
  return (
    <details class="folder" open={!shut.value.has(name)} onToggle={onToggle}>
      <summary>
        <Icon name="folder" />
        <span>{name}</span>
        <small>{inside.length}</small>
      </summary>
      {items(pinnedFirst)}
    </details>
  )
}

interface TagsProps {
  readonly search: string
  readonly onSearch: (search: string) => void
}

/** Tags: words of names that begin with #. Pressing one filters the list. */
function Tags({ search, onSearch }: TagsProps) {
  const tags = tagsOf((conversations.value ?? []).map(nameOf))
  if (tags.length === 0) return null
  return (
    <div class="row tags">
      {tags.map((tag) => (
        <Button key={tag} kind="chip" isPressed={search === tag} onClick={() => onSearch(search === tag ? '' : tag)}>
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
