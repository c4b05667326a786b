/** Form fields for the required form of answers and for tools. */
import { type Text, t } from '../lib/i18n.ts'
import { FORMATS, type Settings, toolsOf } from '../lib/wire.ts'
import { Field } from '../parts/basics.tsx'

type Format = Settings['format']

interface FormatText {
  readonly name: Text
  readonly hint: Text
  /** An example of the form; absent if none is needed. */
  readonly example?: string
}

const TEXTS: Readonly<Record<Format, FormatText>> = {
  text: { name: 'free text', hint: 'Any text' },
  json: { name: 'JSON', hint: 'Any JSON object; describe it in the message' },
  schema: {
    name: 'JSON by a schema',
    hint: 'A JSON Schema; the model does not see it, so describe the answer in the message',
    example: '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
  },
  regex: { name: 'regular expression', hint: 'The whole answer must match it', example: '(yes|no)\\.' },
  grammar: { name: 'grammar', hint: 'GBNF, as in llama.cpp', example: 'root ::= "yes" | "no"' },
}

const TOOLS_EXAMPLE = `[{"name": "weather", "description": "The weather of a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]`

interface FormFieldsProps {
  readonly settings: Settings
  readonly isChat: boolean
  readonly onChange: (change: Partial<Settings>) => void
}

export function FormFields({ settings, isChat, onChange }: FormFieldsProps) {
  const { format, form, tools } = settings
  const { hint, example } = TEXTS[format]
  const isNoJson = format === 'schema' && form.trim() !== '' && problemOf(() => JSON.parse(form))
  return (
    <>
      <Field label={t('Form of the answer')} hint={t(hint)}>
        {(ids) => (
          <select
            {...ids}
            value={format}
            // The options are all possible values.
            onChange={({ currentTarget }) => onChange({ format: currentTarget.value as Format })}
          >
            {FORMATS.map((one) => (
              <option key={one} value={one}>
                {t(TEXTS[one].name)}
              </option>
            ))}
          </select>
        )}
      </Field>
      {example !== undefined && (
        <CodeField
          label={t(TEXTS[format].name)}
          value={form}
          example={example}
          error={isNoJson || null}
          onChange={(next) => onChange({ form: next })}
        />
      )}
      {isChat && (
        <CodeField
          label={t('Tools')}
          hint={t('Functions that the model may call, as a JSON list; you enter their results')}
          value={tools}
          example={TOOLS_EXAMPLE}
          error={problemOf(() => toolsOf(tools))}
          onChange={(next) => onChange({ tools: next })}
        />
      )}
    </>
  )
}

interface CodeFieldProps {
  readonly label: string
  readonly hint?: string
  readonly value: string
  readonly example: string
  readonly error: string | null
  readonly onChange: (value: string) => void
}

function CodeField({ label, hint = '', value, example, error, onChange }: CodeFieldProps) {
  return (
    <Field label={label} hint={hint} error={error}>
      {(ids) => (
        <textarea
          {...ids}
          class="code-field"
          rows={value === '' ? 3 : Math.min(12, value.split('\n').length + 1)}
          spellcheck={false}
          placeholder={example}
          value={value}
          onInput={({ currentTarget }) => onChange(currentTarget.value)}
        />
      )}
    </Field>
  )
}

function problemOf(read: () => unknown): string | null {
  try {
    read()
    return null
  } catch (thrown) {
    return thrown instanceof Error ? thrown.message : String(thrown)
  }
}
