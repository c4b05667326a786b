/** Modal dialogs: the browser's own element keeps the focus inside and closes with Escape. */
import { signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useId, useRef } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { Button } from './basics.tsx'

interface DialogProps {
  readonly title: string
  readonly onClose: () => void
  readonly children: ComponentChildren
  readonly isWide?: boolean
}

export function Dialog({ title, onClose, children, isWide = false }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => {
    const before = document.activeElement
    dialog.current?.showModal()
    // Focus the first field. The browser would focus the first button, which closes the dialog.
    dialog.current?.querySelector<HTMLElement>('input, select, textarea')?.focus()
    return () => before instanceof HTMLElement && before.focus()
  }, [])
  const onCancel = (event: Event) => {
    // The owner closes the dialog by removing the element.
    event.preventDefault()
    onClose()
  }
  return (
    <dialog ref={dialog} class={isWide ? 'dialog wide' : 'dialog'} aria-labelledby={id} onCancel={onCancel}>
      <header>
        <h2 id={id}>{title}</h2>
        <Button icon="close" kind="quiet" label={t('Close')} onClick={onClose} />
      </header>
      {children}
    </dialog>
  )
}

interface Question {
  readonly text: string
  readonly action: string
  readonly answer: (isYes: boolean) => void
}

const question = signal<Question | null>(null)

/** Asks for confirmation before something that cannot be undone. */
export function confirmed(text: string, action: string): Promise<boolean> {
  return new Promise((resolve) => {
    const answer = (isYes: boolean) => {
      question.value = null
      resolve(isYes)
    }
    question.value = { text, action, answer }
  })
}

export function ConfirmDialog() {
  if (question.value === null) return null
  const { text, action, answer } = question.value
  return (
    <Dialog title={t('Are you sure?')} onClose={() => answer(false)}>
      <p>{text}</p>
      <footer>
        <Button onClick={() => answer(false)}>{t('Cancel')}</Button>
        <Button kind="danger" onClick={() => answer(true)}>
          {action}
        </Button>
      </footer>
    </Dialog>
  )
}
