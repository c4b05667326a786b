/** Quantises a model: while a worker loads it, or once, into a file. */
import { useState } from 'preact/hooks'
import type { ModelFile, ModelQuantisation } from '../../../src/gateway/contract.ts'
import { messageOf } from '../lib/errors.ts'
import { bareName } from '../lib/format.ts'
import { type Text, t } from '../lib/i18n.ts'
import { quantiseModel, startWorker } from '../lib/management.ts'
import { Button, ErrorNote, Field } from '../parts/basics.tsx'
import { Dialog } from '../parts/dialog.tsx'

type Quant = ModelQuantisation['quant']

const HINTS: Readonly<Record<Quant, Text>> = {
  int8: 'About half the size of 16 bits; answers hardly differ',
  q4: 'About a third of the size of 16 bits; answers differ a little',
  nf4: 'About a third of the size of 16 bits, with a code table made for weights; answers differ a little',
}
// Object.keys loses the type of the keys.
const QUANTS = Object.keys(HINTS) as readonly Quant[]

interface QuantiseDialogProps {
  readonly file: ModelFile
  readonly onClose: () => void
  readonly onBegun: () => void
}

export function QuantiseDialog({ file, onClose, onBegun }: QuantiseDialogProps) {
  const [quant, setQuant] = useState<Quant>('int8')
  const [error, setError] = useState<string | null>(null)
  const name = bareName(file.path)
  const run = (begin: () => Promise<unknown>) => {
    setError(null)
    begin()
      .then(() => {
        onBegun()
        onClose()
      })
      .catch((thrown: unknown) => setError(messageOf(thrown)))
  }
  const load = () => startWorker({ model_path: file.path, quant, model_name: `${name.split('/').at(-1)}-${quant}` })
  return (
    <Dialog title={t('Quantise {name}', { name })} onClose={onClose}>
      <Field label={t('Precision')} hint={t(HINTS[quant])}>
        {(ids) => (
          <select
            {...ids}
            value={quant}
            // The options are all possible values.
            onChange={({ currentTarget }) => setQuant(currentTarget.value as Quant)}
          >
            {QUANTS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        )}
      </Field>
      <p class="muted">{t('The new file is written once and loads faster; the original stays as it is.')}</p>
      {error !== null && <ErrorNote text={error} />}
      <footer>
        <Button onClick={() => run(load)}>{t('Quantise and load')}</Button>
        <Button kind="primary" onClick={() => run(() => quantiseModel({ model_path: file.path, quant }))}>
          {t('Write a smaller file')}
        </Button>
      </footer>
    </Dialog>
  )
}
