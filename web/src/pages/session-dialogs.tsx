/** Dialogs for forking and importing a session. */
import { useState } from 'preact/hooks'
import { messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { importSession } from '../lib/sessions.ts'
import { Button, Field } from '../parts/basics.tsx'
import { Dialog } from '../parts/dialog.tsx'

interface NameDialogProps {
  readonly title: string
  readonly initial: string
  readonly onClose: () => void
  readonly onName: (name: string) => Promise<void>
}

export function NameDialog({ title, initial, onClose, onName }: NameDialogProps) {
  const [name, setName] = useState(initial)
  const [error, setError] = useState<string | null>(null)
  const submit = (event: Event) => {
    event.preventDefault()
    onName(name.trim())
      .then(onClose)
      .catch((thrown: unknown) => setError(messageOf(thrown)))
  }
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={submit}>
        <NameField name={name} error={error} onName={setName} />
        <footer>
          <Button onClick={onClose}>{t('Cancel')}</Button>
          <Button kind="primary" type="submit" isDisabled={name.trim() === ''}>
            {t('Fork')}
          </Button>
        </footer>
      </form>
    </Dialog>
  )
}

interface NameFieldProps {
  readonly name: string
  readonly error?: string | null
  readonly onName: (name: string) => void
}

function NameField({ name, error = null, onName }: NameFieldProps) {
  return (
    <Field label={t('Name of the new session')} error={error}>
      {(ids) => <input {...ids} value={name} onInput={({ currentTarget }) => onName(currentTarget.value)} />}
    </Field>
  )
}

export function ImportDialog({ model, onClose }: { readonly model: string; readonly onClose: () => void }) {
  const [file, setFile] = useState<File | null>(null)
  const [name, setName] = useState('')
  const [error, setError] = useState<string | null>(null)
  const submit = (event: Event) => {
    event.preventDefault()
    if (file === null) return
    importSession(model, name.trim(), file)
      .then(onClose)
      .catch((thrown: unknown) => setError(messageOf(thrown)))
  }
  return (
    <Dialog title={t('Import a state')} onClose={onClose}>
      <form onSubmit={submit}>
        <Field label={t('File')} hint={t('An exported state; it must fit the model')} error={error}>
          {(ids) => (
            <input
              {...ids}
              type="file"
              onChange={({ currentTarget }) => {
                const chosen = currentTarget.files?.[0] ?? null
                setFile(chosen)
                if (name === '' && chosen !== null) setName(chosen.name.replace(/\.state$/, ''))
              }}
            />
          )}
        </Field>
        <NameField name={name} onName={setName} />
        <footer>
          <Button onClick={onClose}>{t('Cancel')}</Button>
          <Button kind="primary" type="submit" isDisabled={file === null || name.trim() === ''}>
            {t('Import')}
          </Button>
        </footer>
      </form>
    </Dialog>
  )
}
