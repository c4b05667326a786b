/** Buttons, fields, badges and the notes in place of missing content. They do not contact the server. */
import type { ComponentChildren } from 'preact'
import { useEffect, useId, useState } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { hashOf } from '../lib/router.ts'
import { Icon, type IconName } from './icons.tsx'

interface ButtonProps {
  readonly icon?: IconName
  /** The accessible name and tooltip of a button without children. */
  readonly label?: string
  readonly kind?: 'plain' | 'primary' | 'danger' | 'quiet' | 'chip'
  readonly isDisabled?: boolean
  readonly isPressed?: boolean
  readonly type?: 'button' | 'submit'
  readonly onClick?: () => void
  readonly children?: ComponentChildren
}

export function Button(props: ButtonProps) {
  const { icon, label, kind = 'plain', isDisabled = false, isPressed, onClick, children } = props
  const { type = 'button' } = props
  const click = (event: Event) => {
    // The next render may turn this button into the form's submit button before the browser handles the click.
    if (type === 'button') event.preventDefault()
    onClick?.()
  }
  return (
    <button
      type={type}
      class={`button ${kind} ${children === undefined ? 'square' : ''}`}
      disabled={isDisabled}
      aria-label={label}
      title={label}
      aria-pressed={isPressed}
      onClick={click}
    >
      {icon && <Icon name={icon} />}
      {children !== undefined && <span>{children}</span>}
    </button>
  )
}

interface FieldProps {
  readonly label: string
  readonly hint?: string
  readonly error?: string | null
  readonly children: (ids: {
    readonly id: string
    readonly 'aria-describedby': string
    readonly 'aria-invalid': boolean
  }) => ComponentChildren
}

/** A label, its control, and an error or a hint. */
export function Field({ label, hint, error = null, children }: FieldProps) {
  const id = useId()
  const noteId = `${id}-note`
  return (
    <div class={error === null ? 'field' : 'field wrong'}>
      <label for={id}>{label}</label>
      {children({ id, 'aria-describedby': noteId, 'aria-invalid': error !== null })}
      <small id={noteId} role={error === null ? undefined : 'alert'}>
        {error ?? hint ?? ''}
      </small>
    </div>
  )
}

export function Badge({ tone, children }: { tone: string; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>
}

interface EmptyProps {
  readonly title: string
  readonly children?: ComponentChildren
}

export function Empty({ title, children }: EmptyProps) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  )
}

/** In place of what a page shows of a model, and where to get one. */
export function NoModel({ children }: { readonly children?: ComponentChildren }) {
  return (
    <Empty title={t('No model is running')}>
      {children}
      <a class="button primary" href={hashOf('models')}>
        {t('Choose a model')}
      </a>
    </Empty>
  )
}

export function Loading() {
  return (
    <div class="fetching" role="status">
      <span class="spinner" />
      {t('Loading')}
    </div>
  )
}

export function ErrorNote({ text, onRetry }: { text: string; onRetry?: () => void }) {
  return (
    <div class="note error" role="alert">
      <span>{text}</span>
      {onRetry && (
        <Button icon="again" kind="quiet" onClick={onRetry}>
          {t('Try again')}
        </Button>
      )}
    </div>
  )
}

const COPIED_MS = 1500

interface CopyButtonProps {
  /** If this rejects, nothing is copied; the caller reports why. */
  readonly text: () => string | Promise<string | null>
  readonly label?: string
  /** Its name if it has no label. */
  readonly title?: string
  readonly icon?: IconName
}

export function CopyButton({ text, label, title = t('Copy'), icon = 'copy' }: CopyButtonProps) {
  const [isCopied, setCopied] = useState(false)
  useEffect(() => {
    if (!isCopied) return
    const timer = setTimeout(() => setCopied(false), COPIED_MS)
    return () => clearTimeout(timer)
  }, [isCopied])
  const copy = async () => {
    const wanted = await text()
    if (wanted !== null) setCopied(await copyText(wanted))
  }
  return (
    <Button
      icon={isCopied ? 'check' : icon}
      kind="quiet"
      label={isCopied ? t('Copied') : title}
      onClick={() => void copy()}
    >
      {label}
    </Button>
  )
}

/** Browsers allow the clipboard only on https and this machine; elsewhere this copies a selection. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    const area = document.createElement('textarea')
    area.value = text
    // While a dialog is open, only its content can be selected.
    const place = document.querySelector('dialog[open]') ?? document.body
    place.append(area)
    area.select()
    const isCopied = document.execCommand('copy')
    area.remove()
    return isCopied
  }
}
