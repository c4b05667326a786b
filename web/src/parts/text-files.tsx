/** A button to choose text files. */
import { useRef } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import { Button } from './basics.tsx'

export function TextFilesButton({ onFiles }: { readonly onFiles: (files: File[]) => void }) {
  const picker = useRef<HTMLInputElement>(null)
  return (
    <>
      <Button icon="clip" kind="quiet" label={t('Add text files')} onClick={() => picker.current?.click()} />
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        aria-label={t('Add text files')}
        onChange={({ currentTarget }) => {
          // Copy the list: clearing the value, so that the same file can be chosen again, empties it.
          onFiles([...(currentTarget.files ?? [])])
          currentTarget.value = ''
        }}
      />
    </>
  )
}
