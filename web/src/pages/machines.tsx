/** Machines: this machine and its GPUs, or every node of a cluster with its workers. */
import { useEffect } from 'preact/hooks'
import { cluster, refreshCluster } from '../lib/cluster.ts'
import { t } from '../lib/i18n.ts'
import { samples, system, workers } from '../lib/live.ts'
import { Empty } from '../parts/basics.tsx'
import { ClusterNodes } from './cluster-nodes.tsx'
import { Machine } from './machine-card.tsx'

const POLL_MS = 2000

export function MachinesPage() {
  const isFront = cluster.value !== null
  useEffect(() => {
    if (!isFront) return
    const abort = new AbortController()
    // If one call fails, its last result stays.
    const timer = setInterval(() => refreshCluster(abort.signal).catch(() => {}), POLL_MS)
    return () => {
      clearInterval(timer)
      abort.abort()
    }
  }, [isFront])
  const now = samples.value.at(-1)
  return (
    <>
      <div class="page-head">
        <h1>{t('Machines')}</h1>
        <p class="lead">
          {isFront
            ? t('Every node of the cluster, what it runs and how many sessions live there.')
            : t('What this server runs on, and how busy it is.')}
        </p>
      </div>
      {cluster.value !== null && <ClusterNodes info={cluster.value} />}
      {system.value !== null && (
        <Machine
          system={system.value}
          use={{
            cpu: now?.cpu_use ?? system.value.cpu.use,
            availableBytes: now?.memory_available_bytes ?? system.value.memory.available_bytes,
            gpus: now?.gpus ?? system.value.gpus,
          }}
          workers={workers.value}
          isOwn
        />
      )}
      {system.value !== null && system.value.gpus.length === 0 && (
        <p class="muted">{t('No GPU was found; models run on the processor.')}</p>
      )}
      {system.value === null && !isFront && <Empty title={t('Nothing is known about the machine')} />}
    </>
  )
}
