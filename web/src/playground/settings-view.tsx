/** Every choice of a request as a control; an empty one is the server's default, which it shows. */
import type { Signal } from '@preact/signals'
import { useState } from 'preact/hooks'
import { type Text, t } from '../lib/i18n.ts'
import { DEFAULTS, type Settings } from '../lib/wire.ts'
import { Button, Field } from '../parts/basics.tsx'

type NumberName =
  | 'temperature'
  | 'top_p'
  | 'top_k'
  | 'min_p'
  | 'presence_penalty'
  | 'frequency_penalty'
  | 'penalty_decay'
  | 'repetition_penalty'
  | 'max_tokens'
  | 'seed'

interface NumberChoice {
  readonly name: NumberName
  readonly label: Text
  readonly min: number
  readonly max: number
  readonly step: number
  /** What the server takes without it. */
  readonly otherwise: string
}

/** Ranges and defaults: docs/api.md. */
const NUMBERS: readonly NumberChoice[] = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 1000, step: 0.1, otherwise: '1' },
  { name: 'top_p', label: 'Top p', min: 0, max: 1, step: 0.05, otherwise: '1' },
  { name: 'top_k', label: 'Top k', min: -1, max: 1e6, step: 1, otherwise: 'off' },
  { name: 'min_p', label: 'Min p', min: 0, max: 1, step: 0.01, otherwise: '0' },
  { name: 'presence_penalty', label: 'Presence', min: -100, max: 100, step: 0.1, otherwise: '0' },
  { name: 'frequency_penalty', label: 'Frequency', min: -100, max: 100, step: 0.1, otherwise: '0' },
  { name: 'penalty_decay', label: 'Penalty decay', min: 0, max: 1, step: 0.001, otherwise: '1' },
  {
    name: 'repetition_penalty',
    label: 'Repetition',
    min: 0.01,
    max: 100,
    step: 0.05,
    otherwise: '1',
  },
  { name: 'max_tokens', label: 'Max tokens', min: 1, max: 65536, step: 1, otherwise: '' },
  { name: 'seed', label: 'Seed', min: 0, max: 2 ** 53 - 1, step: 1, otherwise: '' },
]

interface SettingsViewProps {
  readonly settings: Signal<Settings>
  /** What is used where max_tokens is empty. */
  readonly maxTokens: string
  readonly isChat: boolean
}

export function SettingsView({ settings, maxTokens, isChat }: SettingsViewProps) {
  const set = (change: Partial<Settings>) => {
    settings.value = { ...settings.value, ...change }
  }
  return (
    <fieldset class="settings">
      <legend>{t('Settings')}</legend>
      <div class="columns narrow">
        {NUMBERS.map((choice) => (
          <NumberField
            key={choice.name}
            {...choice}
            otherwise={othersOf(choice, maxTokens)}
            value={settings.value[choice.name]}
            onChange={(value) => set({ [choice.name]: value })}
          />
        ))}
        {isChat && <ThinkField value={settings.value.think} onChange={(think) => set({ think })} />}
      </div>
      <div class="columns">
        <LinesField
          label={t('Stop texts')}
          hint={t('One a line; \\n is a line end')}
          value={settings.value.stop}
          onChange={(stop) => set({ stop })}
        />
        <LinesField
          label={t('Banned tokens')}
          hint={t('Their numbers')}
          value={settings.value.banned_tokens}
          onChange={(banned_tokens) => set({ banned_tokens })}
        />
        <LinesField
          label={t('Token bias')}
          hint={t('NUMBER: BIAS, one a line')}
          value={settings.value.logit_bias}
          onChange={(logit_bias) => set({ logit_bias })}
        />
      </div>
      <div class="row">
        <label class="check">
          <input
            type="checkbox"
            checked={settings.value.ignore_eos}
            onChange={({ currentTarget }) => set({ ignore_eos: currentTarget.checked })}
          />
          {t('Go on after the end of text')}
        </label>
        <Button
          icon="again"
          kind="quiet"
          onClick={() => set({ ...DEFAULTS, alternatives: settings.value.alternatives })}
        >
          {t('Back to the defaults')}
        </Button>
      </div>
    </fieldset>
  )
}

function othersOf({ name, otherwise }: NumberChoice, maxTokens: string): string {
  if (name === 'max_tokens') return maxTokens
  if (name === 'seed') return t('random')
  return otherwise === 'off' ? t('off') : otherwise
}

interface NumberFieldProps extends NumberChoice {
  readonly value: number | null
  readonly onChange: (value: number | null) => void
}

function NumberField(props: NumberFieldProps) {
  const { label, min, max, step, otherwise, value, onChange } = props
  // "0." is 0 already: written back as a number it would lose its point, and the caret its place, before "0.7" is there.
  const [typed, setTyped] = useState<{ readonly text: string; readonly value: number | null }>()
  return (
    <Field label={t(label)}>
      {(ids) => (
        <input
          {...ids}
          type="number"
          min={min}
          max={max}
          // Any number in the range is right; the step is that of the arrows.
          step={step}
          placeholder={otherwise}
          value={typed !== undefined && typed.value === value ? typed.text : (value ?? '')}
          onInput={({ currentTarget }) => {
            const { value: text, valueAsNumber } = currentTarget
            const number = Number.isNaN(valueAsNumber) ? null : valueAsNumber
            setTyped({ text, value: number })
            onChange(number)
          }}
        />
      )}
    </Field>
  )
}

interface ThinkFieldProps {
  readonly value: Settings['think']
  readonly onChange: (value: Settings['think']) => void
}

function ThinkField({ value, onChange }: ThinkFieldProps) {
  return (
    <Field label={t('Thinking')}>
      {(ids) => (
        <select
          {...ids}
          value={value}
          // The options below are all there are.
          onChange={({ currentTarget }) => onChange(currentTarget.value as Settings['think'])}
        >
          <option value="auto">{t('automatic')}</option>
          <option value="on">{t('first')}</option>
          <option value="off">{t('never')}</option>
        </select>
      )}
    </Field>
  )
}

interface LinesFieldProps {
  readonly label: string
  readonly hint: string
  readonly value: string
  readonly onChange: (value: string) => void
}

function LinesField({ label, hint, value, onChange }: LinesFieldProps) {
  return (
    <Field label={label} hint={hint}>
      {(ids) => (
        <textarea
          {...ids}
          rows={1}
          spellcheck={false}
          value={value}
          onInput={({ currentTarget }) => onChange(currentTarget.value)}
        />
      )}
    </Field>
  )
}
