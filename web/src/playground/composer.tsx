/** The input box for all visible conversations. Text files dropped on it become part of the message. */
import { signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import { type Text, t } from '../lib/i18n.ts'
import { type Sending, sending } from '../lib/preferences.ts'
import { Button } from '../parts/basics.tsx'
import { TextFilesButton } from '../parts/text-files.tsx'
import { asQuoted, readTextFile } from './attachment.ts'
import { opening, panes } from './panes.ts'
import { isSendingKey } from './sending-key.ts'

const draft = signal('')
/** Also in Settings. */
export const SENDING_TEXTS: Readonly<Record<Sending, Text>> = {
  enter: 'Enter sends, Shift+Enter begins a line',
  'ctrl-enter': 'Ctrl+Enter sends, Enter begins a line',
}
const notice = signal<string | null>(null)

export function Composer() {
  const [isOver, setOver] = useState(false)
  const box = useRef<HTMLTextAreaElement>(null)
  const [first] = panes.value
  // Whoever opens a conversation wants to write. On a touch screen the keyboard would cover it.
  useEffect(() => {
    if (!matchMedia('(pointer: coarse)').matches) box.current?.focus()
  }, [first])
  const { value: text } = draft
  const setText = (value: string) => {
    draft.value = value
  }
  const all = panes.value
  const isBusy = all.some((pane) => pane.isBusy.value)
  // The message is for the conversations that are about to be shown.
  const isOpening = opening.value.state === 'loading'
  const hasModel = all.some(({ choice }) => choice.value !== null)
  const canSend = !isBusy && !isOpening && hasModel && text.trim() !== ''
  const send = () => {
    if (!canSend) return
    notice.value = null
    for (const pane of all) void pane.send(text.trim())
    setText('')
  }
  const submit = (event: Event) => {
    event.preventDefault()
    send()
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (!isSendingKey(event)) return
    event.preventDefault()
    send()
  }
  const drop = (event: DragEvent) => {
    setOver(false)
    const files = [...(event.dataTransfer?.files ?? [])]
    if (files.length === 0) return
    event.preventDefault()
    void attach(files)
  }
  const over = (event: DragEvent) => {
    event.preventDefault()
    setOver(true)
  }
  return (
    <form
      class={isOver ? 'composer over' : 'composer'}
      onSubmit={submit}
      onDrop={drop}
      onDragOver={over}
      onDragLeave={() => setOver(false)}
    >
      {notice.value !== null && (
        <p class="composer-note" role="alert">
          {notice.value}
        </p>
      )}
      <textarea
        ref={box}
        aria-label={t('Message')}
        placeholder={t('Write a message')}
        rows={1}
        value={text}
        onInput={({ currentTarget }) => setText(currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <div class="composer-foot">
        <TextFilesButton onFiles={(files) => void attach(files)} />
        <small class="composer-hint">{t(SENDING_TEXTS[sending.value])}</small>
        {isBusy ? (
          <Button icon="stop" kind="primary" label={t('Stop')} onClick={() => all.map((pane) => pane.stop())} />
        ) : (
          <Button icon="send" kind="primary" label={t('Send')} type="submit" isDisabled={!canSend} />
        )}
      </div>
    </form>
  )
}

async function attach(files: readonly File[]): Promise<void> {
  notice.value = null
  for (const file of files) {
    const read = await readTextFile(file)
    if ('error' in read) notice.value = t(read.error, { name: file.name })
    else draft.value = `${draft.value}${draft.value === '' ? '' : '\n\n'}${asQuoted(file.name, read.text)}\n`
  }
}
