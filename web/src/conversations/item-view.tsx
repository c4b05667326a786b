/** A conversation in the list: its name and its actions. */
import { useState } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { hashOf, route } from '../lib/router.ts'
import { exportSession, getSession } from '../lib/sessions.ts'
import { Button, CopyButton } from '../parts/basics.tsx'
import { hidden, panes } from '../playground/panes.ts'
import { exportText } from './export.ts'
import { nameOf } from './list.ts'
import { NoteForm } from './note-form.tsx'
import { note, noteOf } from './notes.ts'
import type { Conversation } from './periods.ts'

export function isPinned({ model, id }: Conversation): boolean {
  return noteOf(model, id)?.isPinned === true
}

export function folderOf({ model, id }: Conversation): string {
  return noteOf(model, id)?.folder ?? ''
}

interface ItemProps {
  readonly one: Conversation
  /** Null outside selection mode. */
  readonly isChosen: boolean | null
  readonly onToggle: () => void
  readonly onOpen: () => void
  readonly onRun: (action: Promise<void>) => void
  readonly onDelete: () => void
}

export function ItemView({ one, isChosen, onToggle, onOpen, onRun, onDelete }: ItemProps) {
  const [isOpen, setOpen] = useState(false)
  const [edited, setEdited] = useState<'name' | 'folder' | null>(null)
  const { model, id } = one
  const { argument, rest } = route.value
  const isHere = argument === model && rest[0] === id
  const name = nameOf(one)
  if (edited !== null) {
    return (
      <li>
        <NoteForm
          kind={edited}
          value={edited === 'name' ? name : folderOf(one)}
          onSave={(value) => {
            note(model, id, edited === 'name' ? { name: value } : { folder: value })
            setEdited(null)
          }}
          onCancel={() => setEdited(null)}
        />
      </li>
    )
  }
  const edit = (what: 'name' | 'folder') => () => {
    setOpen(false)
    setEdited(what)
  }
  return (
    <li class={isHere ? 'here' : ''}>
      <div class="conversation">
        {isChosen !== null && <input type="checkbox" aria-label={name} checked={isChosen} onChange={onToggle} />}
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
            label={t('More actions for {name}', { name })}
            isPressed={isOpen}
            onClick={() => setOpen(!isOpen)}
          />
        )}
      </div>
      {isOpen && isChosen === null && (
        <div class="conversation-actions">
          <Button icon="edit" kind="quiet" label={t('Rename')} onClick={edit('name')} />
          <Button
            icon="pin"
            kind="quiet"
            label={isPinned(one) ? t('Unpin') : t('Pin')}
            isPressed={isPinned(one)}
            onClick={() => note(model, id, { isPinned: !isPinned(one) })}
          />
          <Button icon="folder" kind="quiet" label={t('Put into a folder')} onClick={edit('folder')} />
          <CopyButton icon="link" title={t('Copy the link')} text={() => addressOf(one)} />
          <Button
            icon="docs"
            kind="quiet"
            label={t('Export as text')}
            onClick={() => onRun(exportText(model, id, name))}
          />
          <Button icon="download" kind="quiet" label={t('Export as a state')} onClick={() => onRun(exportState(one))} />
          <Button icon="trash" kind="quiet" label={t('Delete')} onClick={onDelete} />
        </div>
      )}
    </li>
  )
}

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
