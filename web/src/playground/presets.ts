/** Named settings: built-in ones, and the user's own, which this browser stores. */
import { signal } from '@preact/signals'
import type { Text } from '../lib/i18n.ts'
import { DEFAULTS, type Settings } from '../lib/wire.ts'

/** The settings of a preset, without the token view. */
export type PresetValues = Omit<Settings, 'alternatives'>

interface BuiltIn {
  readonly name: Text
  readonly values: Partial<PresetValues>
}

/** The first one is the server's defaults. */
export const BUILT_IN: readonly BuiltIn[] = [
  { name: 'Server defaults', values: {} },
  {
    name: 'Balanced',
    values: { temperature: 1, top_p: 0.5, presence_penalty: 0.5, frequency_penalty: 0.5, penalty_decay: 0.996 },
  },
  { name: 'Precise', values: { temperature: 0.4, top_p: 0.3, frequency_penalty: 0.3 } },
  {
    name: 'Creative',
    values: { temperature: 1.2, top_p: 0.8, presence_penalty: 0.6, frequency_penalty: 0.6, penalty_decay: 0.99 },
  },
  { name: 'Always the likeliest', values: { temperature: 0 } },
]

const STORED = 'skein.presets'

export const ownPresets = signal<Readonly<Record<string, Partial<PresetValues>>>>(readOwn())

export function savePreset(name: string, settings: Settings): void {
  write({ ...ownPresets.value, [name]: changesOf(settings) })
}

export function dropPreset(name: string): void {
  const { [name]: _, ...rest } = ownPresets.value
  write(rest)
}

/** The required form of answers stays, unless the preset sets it. */
export function withPreset(settings: Settings, values: Partial<PresetValues>): Settings {
  const { alternatives, format, form, tools } = settings
  return { ...DEFAULTS, format, form, tools, ...values, alternatives }
}

/** Whether the settings are those of a preset. */
export function isPreset(settings: Settings, values: Partial<PresetValues>): boolean {
  const wanted = withPreset(settings, values)
  // Both have every key of DEFAULTS.
  return (Object.keys(DEFAULTS) as (keyof Settings)[]).every((key) => wanted[key] === settings[key])
}

function changesOf(settings: Settings): Partial<PresetValues> {
  const { alternatives: _, ...rest } = settings
  const changed = Object.entries(rest).filter(([key, value]) => value !== DEFAULTS[key as keyof Settings]) // its own keys
  return Object.fromEntries(changed)
}

function write(all: Readonly<Record<string, Partial<PresetValues>>>): void {
  ownPresets.value = all
  localStorage.setItem(STORED, JSON.stringify(all))
}

function readOwn(): Readonly<Record<string, Partial<PresetValues>>> {
  try {
    const read: unknown = JSON.parse(localStorage.getItem(STORED) ?? '{}')
    // Only this file writes it.
    return typeof read === 'object' && read !== null ? (read as typeof ownPresets.value) : {}
  } catch {
    return {}
  }
}
