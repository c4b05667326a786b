/** A control for every setting of a request. An empty control shows the server's default. */
import type { Signal } from '@preact/signals'
import { useState } from 'preact/hooks'
import { SAMPLING } from '../../../src/sampling.ts'
import { type Text, t } from '../lib/i18n.ts'
import { DEFAULTS, type NumberName, type Settings } from '../lib/wire.ts'
import { Button, Field } from '../parts/basics.tsx'
import { FormFields } from './form-fields.tsx'

interface NumberChoice extends Partial<Dial> {
  readonly name: NumberName
  readonly label: Text
  readonly min: number
  readonly max: number
  readonly step: number
  /** The server's default. */
  readonly otherwise: string
}

/** How a number is entered. */
interface Dial {
  readonly hint: Text
  /** The range of the slider; absent: no slider. */
  readonly slider?: readonly [low: number, high: number]
  /** Rarely changed. */
  readonly isRare?: boolean
}

const DIALS: Readonly<Partial<Record<NumberName, Dial>>> = {
  temperature: { hint: '0: always the likeliest token', slider: [0, 2] },
  top_p: { hint: 'Only the likeliest tokens that add up to this', slider: [0, 1] },
  max_tokens: { hint: 'Where an answer is cut' },
  presence_penalty: { hint: 'Makes used tokens less likely', slider: [-2, 2] },
  frequency_penalty: { hint: 'Makes tokens that were used often less likely', slider: [-2, 2] },
  penalty_decay: { hint: 'Below 1, old uses count less', slider: [0.9, 1] },
  top_k: { hint: 'Only this many of the likeliest tokens', slider: [0, 200], isRare: true },
  min_p: { hint: 'No token below this share of the highest probability', slider: [0, 0.5], isRare: true },
  repetition_penalty: { hint: 'Above 1: makes all earlier tokens less likely', slider: [0.5, 2], isRare: true },
  seed: { hint: 'The same seed gives the same answer', isRare: true },
}

const NUMBERS: readonly NumberChoice[] = [
  ...Object.values(SAMPLING).flatMap((row) =>
    'label' in row
      ? [
          {
            ...row,
            ...DIALS[row.fields[0]],
            name: row.fields[0],
            otherwise: row.min < row.off && 'int' in row ? 'off' : String(row.off),
          },
        ]
      : [],
  ),
  { ...DIALS.max_tokens, ...{ name: 'max_tokens', label: 'Max tokens', min: 1, max: 65536, step: 1, otherwise: '' } },
  { ...DIALS.seed, ...{ name: 'seed', label: 'Seed', min: 0, max: 2 ** 53 - 1, step: 1, otherwise: '' } },
]

interface SettingsViewProps {
  readonly settings: Signal<Settings>
  /** The value for an empty max_tokens. */
  readonly maxTokens: string
  readonly isChat: boolean
}

export function SettingsView({ settings, maxTokens, isChat }: SettingsViewProps) {
  const set = (change: Partial<Settings>) => {
    settings.value = { ...settings.value, ...change }
  }
  const field = (choice: NumberChoice) => (
    <NumberField
      key={choice.name}
      {...choice}
      otherwise={othersOf(choice, maxTokens)}
      value={settings.value[choice.name]}
      onChange={(value) => set({ [choice.name]: value })}
    />
  )
  return (
    <fieldset class="settings">
      <legend>{t('Sampling')}</legend>
      {NUMBERS.filter(({ isRare }) => !isRare).map(field)}
      {isChat && <ThinkField value={settings.value.think} onChange={(think) => set({ think })} />}
      <FormFields settings={settings.value} isChat={isChat} onChange={set} />
      <details class="more">
        <summary>{t('More settings')}</summary>
        {NUMBERS.filter(({ isRare }) => isRare).map(field)}
        <LinesField
          label={t('Stop texts')}
          hint={t('One per line; \\n is a line end')}
          value={settings.value.stop}
          onChange={(stop) => set({ stop })}
        />
        <LinesField
          label={t('Banned tokens')}
          hint={t('Token ids')}
          value={settings.value.banned_tokens}
          onChange={(banned_tokens) => set({ banned_tokens })}
        />
        <LinesField
          label={t('Token bias')}
          hint={t('ID: BIAS, one per line')}
          value={settings.value.logit_bias}
          onChange={(logit_bias) => set({ logit_bias })}
        />
        <label class="check">
          <input
            type="checkbox"
            checked={settings.value.ignore_eos}
            onChange={({ currentTarget }) => set({ ignore_eos: currentTarget.checked })}
          />
          {t('Continue after the end of text')}
        </label>
      </details>
      <Button icon="again" kind="quiet" onClick={() => set({ ...DEFAULTS, alternatives: settings.value.alternatives })}>
        {t('Back to the defaults')}
      </Button>
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
  const { label, hint, min, max, step, slider, otherwise, value, onChange } = props
  // "0." already means 0. Written back as a number it would lose its point before the user completes "0.7".
  const [typed, setTyped] = useState<{ readonly text: string; readonly value: number | null }>()
  const isOut = value !== null && (value < min || value > max)
  const error = isOut ? t('Expected {min} to {max}', { min, max }) : null
  return (
    <Field label={t(label)} hint={hint === undefined ? '' : t(hint)} error={error}>
      {(ids) => (
        <div class="dial">
          {slider && (
            <input
              type="range"
              aria-label={t('{name}, slider', { name: t(label) })}
              class={value === null ? 'unset' : ''}
              min={slider[0]}
              max={slider[1]}
              step={step}
              value={value ?? (Number(otherwise) || 0)}
              onInput={({ currentTarget }) => onChange(currentTarget.valueAsNumber)}
            />
          )}
          <input
            {...ids}
            type="number"
            min={min}
            max={max}
            // Any number in the range is valid; the step is only for the arrows.
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
        </div>
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
          // The options below are all possible values.
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
