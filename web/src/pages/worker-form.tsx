/** The form that starts a worker. Rare fields are folded; errors appear beside their field. */
import { useState } from 'preact/hooks'
import type { ModelFile } from '../../../src/gateway/contract.ts'
import { ApiError, messageOf } from '../lib/errors.ts'
import { bytes } from '../lib/format.ts'
import { type Text, t } from '../lib/i18n.ts'
import { system } from '../lib/live.ts'
import { modelFiles, startWorker } from '../lib/management.ts'
import { EMPTY_FORM, type Form, specOf } from '../lib/worker-spec.ts'
import { Button, ErrorNote, Field } from '../parts/basics.tsx'
import { Dialog } from '../parts/dialog.tsx'
import { useResource } from '../parts/resource.ts'

const QUANTS = ['file', 'f32', 'f16', 'bf16', 'fp8', 'int8', 'q4', 'nf4']
/** The option for typing a path. */
const OTHER = ' other'

interface FormError {
  readonly field: string | null
  readonly message: string
}

export function WorkerForm({ onClose }: { readonly onClose: () => void }) {
  const [form, setForm] = useState<Form>(EMPTY_FORM)
  const [error, setError] = useState<FormError | null>(null)
  const [isSending, setSending] = useState(false)
  const files = useResource(modelFiles, [])
  const first = files.value?.[0]?.path ?? ''
  const current = form.model_path === '' ? { ...form, model_path: first } : form

  const submit = (event: Event) => {
    event.preventDefault()
    setSending(true)
    setError(null)
    startWorker(specOf(current))
      .then(onClose)
      .catch((thrown: unknown) => setError(formError(thrown)))
      .finally(() => setSending(false))
  }
  const control: Control = {
    form: current,
    set: (change) => setForm({ ...current, ...change }),
    errorOf: (name) => (error?.field === name ? error.message : null),
  }
  const isElsewhere = error !== null && (error.field === null || !(error.field in EMPTY_FORM))
  return (
    <Dialog title={t('Start a worker')} onClose={onClose} isWide>
      <form onSubmit={submit}>
        {isElsewhere && <ErrorNote text={error.message} />}
        {files.error !== null && <ErrorNote text={files.error} onRetry={files.refresh} />}
        <ModelField {...control} files={files.value ?? []} />
        <div class="columns">
          <TextField {...control} name="model_name" label="Name" hint="The name that requests use" />
          <DeviceField {...control} />
          <QuantField {...control} />
        </div>
        <Advanced {...control} isOpen={isAdvanced(error?.field)} />
        <footer>
          <Button onClick={onClose}>{t('Cancel')}</Button>
          <Button kind="primary" type="submit" isDisabled={isSending || current.model_path === ''}>
            {isSending ? t('Starting') : t('Start')}
          </Button>
        </footer>
      </form>
    </Dialog>
  )
}

interface Control {
  readonly form: Form
  readonly set: (change: Partial<Form>) => void
  readonly errorOf: (name: keyof Form) => string | null
}

/** "states.0.path" belongs to the field `states`. */
function formError(thrown: unknown): FormError {
  const field = thrown instanceof ApiError ? (thrown.field?.split(/[./[]/)[0] ?? null) : null
  return { field, message: messageOf(thrown) }
}

const BASIC: readonly string[] = ['model_path', 'model_name', 'device', 'quant']

function isAdvanced(field: string | null | undefined): boolean {
  return field !== null && field !== undefined && !BASIC.includes(field)
}

function ModelField({ form, set, errorOf, files }: Control & { files: readonly ModelFile[] }) {
  const isKnown = files.some(({ path }) => path === form.model_path)
  const [isOther, setOther] = useState(false)
  const typed = isOther || (!isKnown && form.model_path !== '')
  return (
    <>
      <Field
        label={t('Model file')}
        hint={t('From the model folder, or pulled')}
        error={typed ? null : errorOf('model_path')}
      >
        {(ids) => (
          <select
            {...ids}
            value={typed ? OTHER : form.model_path}
            onChange={({ currentTarget }) => {
              const { value } = currentTarget
              setOther(value === OTHER)
              set({ model_path: value === OTHER ? '' : value })
            }}
          >
            {files.map(({ path, bytes: size, source }) => (
              <option key={path} value={path}>
                {path} · {bytes(size)}
                {source === 'folder' ? '' : ` · ${t(source)}`}
              </option>
            ))}
            <option value={OTHER}>{t('Another path …')}</option>
          </select>
        )}
      </Field>
      {(typed || files.length === 0) && <TextField {...{ form, set, errorOf }} name="model_path" label="Path" />}
    </>
  )
}

interface TextFieldProps extends Control {
  readonly name: keyof Form
  readonly label: Text
  readonly hint?: Text
  readonly isNumber?: boolean
}

function TextField({ form, set, errorOf, name, label, hint, isNumber = false }: TextFieldProps) {
  return (
    <Field label={t(label)} error={errorOf(name)} {...(hint === undefined ? {} : { hint: t(hint) })}>
      {(ids) => (
        <input
          {...ids}
          type="text"
          inputMode={isNumber ? 'numeric' : 'text'}
          autocomplete="off"
          spellcheck={false}
          value={form[name]}
          onInput={({ currentTarget }) => set({ [name]: currentTarget.value })}
        />
      )}
    </Field>
  )
}

function DeviceField({ form, set, errorOf }: Control) {
  return (
    <Field label={t('Device')} error={errorOf('device')}>
      {(ids) => (
        <select {...ids} value={form.device} onChange={({ currentTarget }) => set({ device: currentTarget.value })}>
          <option value="">{t('automatic')}</option>
          {(system.value?.devices ?? []).map((device) => (
            <option key={device}>{device}</option>
          ))}
        </select>
      )}
    </Field>
  )
}

function QuantField({ form, set, errorOf }: Control) {
  return (
    <Field label={t('Weights')} hint={t('int8 and q4 take less memory')} error={errorOf('quant')}>
      {(ids) => (
        <select {...ids} value={form.quant} onChange={({ currentTarget }) => set({ quant: currentTarget.value })}>
          <option value="">{t('server default')}</option>
          {QUANTS.map((quant) => (
            <option key={quant}>{quant}</option>
          ))}
        </select>
      )}
    </Field>
  )
}

function Advanced({ isOpen, ...control }: Control & { readonly isOpen: boolean }) {
  const number = (name: keyof Form, label: Text, hint: Text) => (
    <TextField {...control} name={name} label={label} hint={hint} isNumber />
  )
  return (
    <details open={isOpen}>
      <summary>{t('More')}</summary>
      <div class="columns">
        {number('max_batch_size', 'Batch size', 'Requests answered at the same time')}
        {number('max_prefill_batch', 'Prefill batch', 'Prompts read at the same time')}
        {number('prefill_chunk_size', 'Prefill chunk', 'Prompt tokens read in one step')}
        {number('max_queue_size', 'Queue limit', 'Requests that may wait for a slot')}
        {number('threads', 'CPU threads', 'For a model that runs on the CPU')}
        {number('port', 'Port', 'Also serves this worker alone')}
        <TextField {...control} name="host" label="Address" hint="Address that the port listens on" />
        <TextField {...control} name="aliases" label="Aliases" hint="Other names, separated by commas" />
        <TextField
          {...control}
          name="tokenizer_path"
          label="Vocabulary file"
          hint="Needed if it is not beside the model"
        />
        <TextField {...control} name="pp_devices" label="Pipeline devices" hint="GPUs that share the layers: 0,1,2,3" />
        <TextField
          {...control}
          name="draft_path"
          label="Draft model"
          hint="A smaller model that predicts the next tokens"
        />
        <SpeculateField {...control} />
        <StateTypeField {...control} />
        <GraphField {...control} />
        <ToolsField {...control} />
      </div>
      <Field label={t('Start states')} hint={t('NAME=FILE, one per line')} error={control.errorOf('states')}>
        {(ids) => (
          <textarea
            {...ids}
            rows={2}
            spellcheck={false}
            value={control.form.states}
            onInput={({ currentTarget }) => control.set({ states: currentTarget.value })}
          />
        )}
      </Field>
    </details>
  )
}

/** The source of guessed tokens, beside a draft model. */
function SpeculateField({ form, set, errorOf }: Control) {
  return (
    <Field label={t('Speculative decoding')} error={errorOf('speculate')}>
      {(ids) => (
        <select
          {...ids}
          value={form.speculate}
          onChange={({ currentTarget }) => set({ speculate: currentTarget.value })}
        >
          <option value="">{t('server default')}</option>
          <option>off</option>
          <option>prediction</option>
          <option>lookup</option>
        </select>
      )}
    </Field>
  )
}

function StateTypeField({ form, set, errorOf }: Control) {
  return (
    <Field label={t('State precision on a GPU')} error={errorOf('wkv')}>
      {(ids) => (
        <select {...ids} value={form.wkv} onChange={({ currentTarget }) => set({ wkv: currentTarget.value })}>
          <option value="">{t('server default')}</option>
          <option>fp32</option>
          <option>fp16</option>
        </select>
      )}
    </Field>
  )
}

/** The format in which the model was trained to see tools. */
function ToolsField({ form, set, errorOf }: Control) {
  return (
    <Field label={t('Tool template')} error={errorOf('tool_template')}>
      {(ids) => (
        <select
          {...ids}
          value={form.tool_template}
          onChange={({ currentTarget }) => set({ tool_template: currentTarget.value })}
        >
          <option value="">{t('server default')}</option>
          <option>g1</option>
          <option>vllm-rwkv</option>
        </select>
      )}
    </Field>
  )
}

function GraphField({ form, set, errorOf }: Control) {
  return (
    <Field label={t('CUDA graphs')} error={errorOf('use_cuda_graph')}>
      {(ids) => (
        <select
          {...ids}
          value={form.use_cuda_graph}
          onChange={({ currentTarget }) => set({ use_cuda_graph: currentTarget.value })}
        >
          <option value="">{t('server default')}</option>
          <option value="true">{t('on')}</option>
          <option value="false">{t('off')}</option>
        </select>
      )}
    </Field>
  )
}
