/** Settings: the choices for this browser, the current key, and what the browser stores. */
import { notes } from '../conversations/notes.ts'
import { forgetKey, isKeyWanted, key } from '../lib/api.ts'
import { bytes } from '../lib/format.ts'
import { type Language, language, setLanguage, t } from '../lib/i18n.ts'
import { forgetAll, keptSize, type Sending, sending, setSending, type Theme, theme } from '../lib/preferences.ts'
import { Button, Field } from '../parts/basics.tsx'
import { confirmed } from '../parts/dialog.tsx'
import { SENDING_TEXTS } from '../playground/composer.tsx'
import { ownPresets } from '../playground/presets.ts'
import { KeyFacts } from './api.tsx'

export function SettingsPage() {
  return (
    <>
      <div class="page-head">
        <h1>{t('Settings')}</h1>
      </div>
      <section class="card stack">
        <h2>{t('This browser')}</h2>
        <Choice<Language>
          label={t('Language')}
          value={language.value}
          options={{ en: 'English', zh: '中文' }}
          onChange={setLanguage}
        />
        <Choice<Theme>
          label={t('Theme')}
          value={theme.value}
          options={{ system: t('as the system'), light: t('light'), dark: t('dark') }}
          onChange={(value) => {
            theme.value = value
          }}
        />
        <Choice<Sending>
          label={t('What sends a message')}
          value={sending.value}
          options={{ enter: t(SENDING_TEXTS.enter), 'ctrl-enter': t(SENDING_TEXTS['ctrl-enter']) }}
          onChange={setSending}
        />
      </section>
      <Key />
      <Kept />
    </>
  )
}

interface ChoiceProps<T extends string> {
  readonly label: string
  readonly value: T
  readonly options: Readonly<Record<T, string>>
  readonly onChange: (value: T) => void
}

function Choice<T extends string>({ label, value, options, onChange }: ChoiceProps<T>) {
  return (
    <Field label={label}>
      {(ids) => (
        <select
          {...ids}
          value={value}
          // The options are all possible values.
          onChange={({ currentTarget }) => onChange(currentTarget.value as T)}
        >
          {Object.entries<string>(options).map(([name, text]) => (
            <option key={name} value={name}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  )
}

function Key() {
  if (key.value === '') {
    return (
      <section class="card stack">
        <h2>{t('Your key')}</h2>
        <p class="muted">{t('This server is used without a key.')}</p>
        <div>
          <Button
            icon="key"
            onClick={() => {
              isKeyWanted.value = true
            }}
          >
            {t('Enter a key')}
          </Button>
        </div>
      </section>
    )
  }
  return (
    <section class="card stack">
      <KeyFacts />
      <p class="muted">{t('Kept by this tab until it is closed, and sent to this server only.')}</p>
      <div>
        <Button icon="key" onClick={forgetKey}>
          {t('Forget the key')}
        </Button>
      </div>
    </section>
  )
}

function Kept() {
  const forget = async () => {
    const text = t(
      'Names, pins, folders, presets and choices of this browser are forgotten. Conversations stay on the server.',
    )
    if (await confirmed(text, t('Forget all of it'))) forgetAll()
  }
  return (
    <section class="card stack">
      <h2>{t('Kept in this browser')}</h2>
      <p>
        {t('Names, pins and folders of conversations ({n}), presets ({presets}), and the choices above: {size}.', {
          n: Object.keys(notes.value).length,
          presets: Object.keys(ownPresets.value).length,
          size: bytes(keptSize()),
        })}
      </p>
      <p class="muted">{t('Words and states of conversations are kept by the server.')}</p>
      <div>
        <Button icon="trash" onClick={() => void forget()}>
          {t('Forget all of it')}
        </Button>
      </div>
    </section>
  )
}
