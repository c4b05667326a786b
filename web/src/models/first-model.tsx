/** Offers the newest small model that fits this machine, when only the demo model is present. */
import { useState } from 'preact/hooks'
import { FIRST_NAMES, isSmallFor, minutesToFetch, RELEASED, RELEASED_LICENCE } from '../../../src/hub/released.ts'
import { messageOf } from '../lib/errors.ts'
import { neededBytes } from '../lib/fit.ts'
import { bareName, bytes } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { connection, models, role, system } from '../lib/live.ts'
import { modelFiles, startPull } from '../lib/management.ts'
import { goTo, hashOf } from '../lib/router.ts'
import { Button, ErrorNote } from '../parts/basics.tsx'
import { useResource } from '../parts/resource.ts'

const DEMO = 'demo'

export function FirstModel() {
  const isDemoAlone = models.value?.every(({ id, root = id }) => root === DEMO) ?? false
  const mayFetch = connection.value.state === 'live' && role.value !== 'operator'
  return isDemoAlone && mayFetch ? <Offer /> : null
}

function Offer() {
  const files = useResource(modelFiles, [])
  const [error, setError] = useState<string | null>(null)
  const total = system.value?.memory.total_bytes ?? 0
  const model = FIRST_NAMES.map((name) => RELEASED.find((one) => one.name === name)!).find((one) =>
    isSmallFor(total, one.bytes),
  )
  const isDemoAlone = files.value?.every(({ path }) => bareName(path) === DEMO) ?? false
  if (model === undefined || !isDemoAlone) return null
  const fetch = () =>
    startPull(model.name).then(
      () => goTo('models'),
      (thrown: unknown) => setError(messageOf(thrown)),
    )
  const facts = [
    t('about {size}', { size: bytes(model.bytes) }),
    t('about {n} min at 100 Mbit/s', { n: minutesToFetch(model.bytes) }),
    t('needs about {size}', { size: bytes(neededBytes(model.bytes)) }),
    t('licence {name}', { name: RELEASED_LICENCE }),
  ]
  return (
    <section class="card first-model" aria-label={t('A model worth talking to')}>
      <div>
        <h2>{t('A model worth talking to')}</h2>
        <p class="muted">{t('The demo model knows little: capitals, small sums, short stories.')}</p>
        <p>
          <b>{model.name}</b> <span class="muted">{facts.join(' · ')}</span>
        </p>
      </div>
      <div class="actions">
        <a class="button quiet" href={hashOf('models')}>
          {t('Other sizes')}
        </a>
        <Button
          icon="download"
          kind="primary"
          label={t('Fetch {name}', { name: model.name })}
          onClick={() => void fetch()}
        >
          {t('Fetch')}
        </Button>
      </div>
      {error !== null && <ErrorNote text={error} />}
    </section>
  )
}
