/** A one-line form for a conversation: its name or its folder. */
import { useId, useState } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { Button } from '../parts/basics.tsx'
import { folders } from './notes.ts'

interface NoteFormProps {
  readonly kind: 'name' | 'folder'
  readonly value: string
  readonly onSave: (value: string) => void
  readonly onCancel: () => void
}

/** A constant function: a new one would take the focus at every render. */
const takeFocus = (element: HTMLInputElement | null) => element?.focus()

export function NoteForm({ kind, value, onSave, onCancel }: NoteFormProps) {
  const [draft, setDraft] = useState(value)
  const list = useId()
  const hint = `${list}-hint`
  const isFolder = kind === 'folder'
  const save = (event: Event) => {
    event.preventDefault()
    onSave(draft.trim())
  }
  return (
    <form class="row renaming" onSubmit={save}>
      <input
        ref={takeFocus}
        aria-label={isFolder ? t('Folder') : t('Name')}
        aria-describedby={hint}
        placeholder={isFolder ? t('Folder; empty: none') : ''}
        list={isFolder ? list : undefined}
        value={draft}
        maxLength={isFolder ? 40 : 120}
        onInput={({ currentTarget }) => setDraft(currentTarget.value)}
        onKeyDown={(event) => event.key === 'Escape' && onCancel()}
      />
      {isFolder && (
        <datalist id={list}>
          {folders().map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      )}
      <Button icon="check" kind="quiet" label={t('Save')} type="submit" />
      <small id={hint} class="muted">
        {t('Names, pins and folders are kept by this browser only.')}
      </small>
    </form>
  )
}
