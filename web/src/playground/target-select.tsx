/** The control that chooses whom to talk to. */
import { t } from '../lib/i18n.ts'
import { allChoices, type Choice, modelChoices, workerChoices } from './targets.ts'

interface TargetSelectProps {
  readonly choice: Choice | null
  readonly onChange: (choice: Choice) => void
}

export function TargetSelect({ choice, onChange }: TargetSelectProps) {
  const choose = (id: string) => {
    const chosen = allChoices().find((candidate) => candidate.id === id)
    if (chosen !== undefined) onChange(chosen)
  }
  const isGone = choice !== null && !allChoices().some(({ id }) => id === choice.id)
  return (
    <select
      class="target"
      aria-label={t('Model')}
      value={choice?.id ?? ''}
      onChange={({ currentTarget }) => choose(currentTarget.value)}
    >
      {choice === null && <option value="">{t('No model')}</option>}
      {isGone && <option value={choice.id}>{`${choice.id} (${t('gone')})`}</option>}
      <Group label={t('Models')} choices={modelChoices()} />
      <Group label={t('One worker')} choices={workerChoices()} />
    </select>
  )
}

function Group({ label, choices }: { label: string; choices: readonly Choice[] }) {
  if (choices.length === 0) return null
  return (
    <optgroup label={label}>
      {choices.map(({ id, model, worker, isReady }) => (
        <option key={id} value={id}>
          {worker === null ? model : `${model} · ${worker}`}
          {isReady ? '' : ` (${t('not ready')})`}
        </option>
      ))}
    </optgroup>
  )
}
