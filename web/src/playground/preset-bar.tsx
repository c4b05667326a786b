/** Buttons for preset settings, and a form to save one's own. */
import type { Signal } from '@preact/signals'
import { useState } from 'preact/hooks'
import { t } from '../lib/i18n.ts'
import type { Settings } from '../lib/wire.ts'
import { Button, Field } from '../parts/basics.tsx'
import { BUILT_IN, dropPreset, isPreset, ownPresets, savePreset, withPreset } from './presets.ts'

export function PresetBar({ settings }: { readonly settings: Signal<Settings> }) {
  const [name, setName] = useState<string | null>(null)
  const { value: now } = settings
  const own = Object.entries(ownPresets.value)
  const save = () => {
    if (!name?.trim()) return
    savePreset(name.trim(), now)
    setName(null)
  }
  // It may be inside another form.
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' || event.isComposing) return
    event.preventDefault()
    save()
  }
  return (
    <fieldset class="presets">
      <legend>{t('Presets')}</legend>
      <div class="chips">
        {BUILT_IN.map((preset) => (
          <Button
            key={preset.name}
            kind="chip"
            isPressed={isPreset(now, preset.values)}
            onClick={() => {
              settings.value = withPreset(now, preset.values)
            }}
          >
            {t(preset.name)}
          </Button>
        ))}
        {own.map(([title, values]) => (
          <span key={title} class="chip-pair">
            <Button
              kind="chip"
              isPressed={isPreset(now, values)}
              onClick={() => {
                settings.value = withPreset(now, values)
              }}
            >
              {title}
            </Button>
            <Button
              icon="close"
              kind="quiet"
              label={t('Delete the preset {name}', { name: title })}
              onClick={() => dropPreset(title)}
            />
          </span>
        ))}
        {name === null && (
          <Button icon="plus" kind="quiet" onClick={() => setName('')}>
            {t('Save as a preset')}
          </Button>
        )}
      </div>
      {name !== null && (
        <div class="row">
          <Field label={t('Name of the preset')}>
            {(ids) => (
              <input
                {...ids}
                value={name}
                maxLength={40}
                onInput={({ currentTarget }) => setName(currentTarget.value)}
                onKeyDown={onKeyDown}
              />
            )}
          </Field>
          <Button kind="primary" isDisabled={name.trim() === ''} onClick={save}>
            {t('Save')}
          </Button>
          <Button onClick={() => setName(null)}>{t('Cancel')}</Button>
        </div>
      )}
    </fieldset>
  )
}
