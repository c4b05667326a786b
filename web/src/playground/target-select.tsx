/** The controls that choose a model and its persona. */
import { t } from '../lib/i18n.ts'
import { allChoices, type Choice, modelChoices, personasOf, rootOf, workerChoices } from './targets.ts'

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
      value={listedId(choice)}
      onChange={({ currentTarget }) => choose(currentTarget.value)}
    >
      {choice === null && <option value="">{t('No model')}</option>}
      {isGone && <option value={choice.id}>{`${choice.id} (${t('gone')})`}</option>}
      <Group label={t('Models')} choices={modelChoices()} />
      <Group label={t('One worker')} choices={workerChoices()} />
    </select>
  )
}

/** Personas have their own control, beside the model. */
function listedId(choice: Choice | null): string {
  if (choice === null) return ''
  return choice.worker === null && choice.id.includes('@') ? rootOf(choice.model) : choice.id
}

/** Absent if the model has no start states. */
export function PersonaSelect({ choice, onChange }: TargetSelectProps) {
  if (choice === null || choice.worker !== null) return null
  const root = rootOf(choice.model)
  const personas = personasOf(root)
  if (personas.length === 0) return null
  const choose = (id: string) => {
    const chosen = allChoices().find((candidate) => candidate.id === id)
    if (chosen !== undefined) onChange(chosen)
  }
  return (
    <select
      class="persona"
      aria-label={t('Persona')}
      title={t('A start state: who the model is before the first word')}
      value={choice.id.includes('@') ? choice.id : root}
      onChange={({ currentTarget }) => choose(currentTarget.value)}
    >
      <option value={root}>{t('no persona')}</option>
      {personas.map(({ name, choice: { id } }) => (
        <option key={id} value={id}>
          {name}
        </option>
      ))}
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
