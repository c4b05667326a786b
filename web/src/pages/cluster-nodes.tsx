/** Nodes of a cluster, from a front gateway: workers, sessions and leases; when opened, machine and logs. */
import { useState } from 'preact/hooks'
import type { ClusterInfo, WorkerRecord } from '../../../src/gateway/contract.ts'
import { changeNodeWorker, nodeLogs, nodeSystem, nodeWorkers } from '../lib/cluster.ts'
import { messageOf } from '../lib/errors.ts'
import { age, count } from '../lib/format.ts'
import { t } from '../lib/i18n.ts'
import { Badge, Button, Empty, ErrorNote, Loading } from '../parts/basics.tsx'
import { confirmed, Dialog } from '../parts/dialog.tsx'
import { useResource } from '../parts/resource.ts'
import { Machine } from './machine-card.tsx'

type Node = ClusterInfo['nodes'][number]

export function ClusterNodes({ info: { requests, nodes, moves } }: { readonly info: ClusterInfo }) {
  const [opened, setOpened] = useState<string | null>(null)
  return (
    <>
      <p class="muted">
        {t('{n} requests forwarded, {moved} after a session moved, {again} retried, {lost} lost', {
          n: count(requests.forwarded),
          moved: count(requests.misdirected),
          again: count(requests.retried),
          lost: count(requests.lost),
        })}
      </p>
      {nodes.length === 0 && <Empty title={t('No node is alive')} />}
      <ul class="model-list nodes">
        {nodes.map((node) => (
          <NodeCard
            key={node.node}
            node={node}
            isOpen={opened === node.node}
            onToggle={() => setOpened(opened === node.node ? null : node.node)}
          />
        ))}
      </ul>
      {moves.latest.length > 0 && <Moves moves={moves} />}
    </>
  )
}

const MOST_MOVES = 20

/** Sessions whose state moved from one node to another. */
function Moves({ moves: { count: all, latest } }: Pick<ClusterInfo, 'moves'>) {
  return (
    <table class="list">
      <caption>{t('{n} sessions have moved', { n: count(all) })}</caption>
      <tbody>
        {latest.slice(0, MOST_MOVES).map(({ at, session, from, to, is_direct }) => (
          <tr key={`${at} ${session}`}>
            <td>{t('{time} ago', { time: age((Date.now() - at) / 1000) })}</td>
            <td>{session}</td>
            <td>
              {from.node} → {to.node}
            </td>
            <td>{is_direct ? t('from memory to memory') : t('through the storage')}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

interface NodeCardProps {
  readonly node: Node
  readonly isOpen: boolean
  readonly onToggle: () => void
}

function NodeCard({ node, isOpen, onToggle }: NodeCardProps) {
  const sessions = node.workers.reduce((sum, one) => sum + one.sessions, 0)
  const running = node.workers.reduce((sum, one) => sum + one.in_flight, 0)
  return (
    <li class="card model">
      <div class="model-text">
        <h2>{node.node}</h2>
        <p class="muted">
          {[node.url, t('{n} sessions', { n: count(sessions) }), t('{n} requests now', { n: count(running) })].join(
            ' · ',
          )}
        </p>
      </div>
      <Badge tone={node.is_passed_by ? 'failed' : 'ready'}>{node.is_passed_by ? t('skipped') : t('serving')}</Badge>
      <div class="actions">
        <Button isPressed={isOpen} onClick={onToggle}>
          {t('Details')}
        </Button>
      </div>
      <table class="list">
        <thead>
          <tr>
            <th scope="col">{t('Model')}</th>
            <th scope="col">{t('Device')}</th>
            <th scope="col" class="number">
              {t('Slots')}
            </th>
            <th scope="col" class="number">
              {t('Sessions')}
            </th>
            <th scope="col" class="number">
              {t('Lease')}
            </th>
          </tr>
        </thead>
        <tbody>
          {node.workers.map(({ id, model, device, slots, in_flight, sessions: own, lease_left_ms }) => (
            <tr key={id}>
              <td>{model}</td>
              <td>{device?.replace(/ \(.*$/, '') ?? '–'}</td>
              <td class="number">
                {in_flight} / {slots}
              </td>
              <td class="number">{count(own)}</td>
              <td class="number">{(lease_left_ms / 1000).toFixed(1)} s</td>
            </tr>
          ))}
        </tbody>
      </table>
      {isOpen && <NodeDetails node={node.node} />}
    </li>
  )
}

function NodeDetails({ node }: { readonly node: string }) {
  const machine = useResource((abort) => nodeSystem(node, abort), [node])
  const workers = useResource((abort) => nodeWorkers(node, abort), [node])
  const [log, setLog] = useState<string | null>(null)
  const [error, setError] = useState<string | null>(null)
  const change = async (worker: WorkerRecord, action: 'stop' | 'restart') => {
    const { worker_id, model } = worker
    const [text, name] =
      action === 'stop'
        ? [t('{model} on {node} finishes its requests and ends.', { model, node }), t('Stop')]
        : [t('{model} finishes its requests and is started again.', { model }), t('Restart')]
    if (!(await confirmed(text, name))) return
    setError(null)
    await changeNodeWorker(node, worker_id, action).catch((thrown: unknown) => setError(messageOf(thrown)))
    workers.refresh()
  }
  const wrong = machine.error ?? workers.error ?? error
  return (
    <div class="node-details">
      {wrong !== null && <ErrorNote text={wrong} onRetry={workers.refresh} />}
      {machine.value === null && machine.error === null && <Loading />}
      {machine.value !== null && (
        <Machine
          system={machine.value}
          use={{
            cpu: machine.value.cpu.use,
            availableBytes: machine.value.memory.available_bytes,
            gpus: machine.value.gpus,
          }}
          workers={workers.value ?? []}
          isOwn={false}
        />
      )}
      <ul class="rows">
        {(workers.value ?? []).map((worker) => (
          <li key={worker.worker_id} class="node-worker">
            <b>{worker.model}</b>
            <Badge tone={worker.phase}>{t(worker.phase)}</Badge>
            <code>{worker.worker_id}</code>
            <span class="actions">
              <Button kind="quiet" onClick={() => setLog(worker.worker_id)}>
                {t('Log')}
              </Button>
              {worker.status === 'running' && (
                <Button kind="quiet" onClick={() => void change(worker, 'stop')}>
                  {t('Stop')}
                </Button>
              )}
              <Button kind="quiet" onClick={() => void change(worker, 'restart')}>
                {t('Restart')}
              </Button>
            </span>
          </li>
        ))}
      </ul>
      {log !== null && <NodeLog node={node} worker={log} onClose={() => setLog(null)} />}
    </div>
  )
}

interface NodeLogProps {
  readonly node: string
  readonly worker: string
  readonly onClose: () => void
}

function NodeLog({ node, worker, onClose }: NodeLogProps) {
  const logs = useResource((abort) => nodeLogs(node, worker, abort), [node, worker])
  return (
    <Dialog title={t('Log of {name}', { name: worker })} onClose={onClose} isWide>
      {logs.error !== null && <ErrorNote text={logs.error} onRetry={logs.refresh} />}
      <section class="log" aria-label={t('Log')}>
        {/* A region that scrolls must be reachable by keyboard. */}
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
        <pre tabIndex={0}>{logs.value?.lines.join('\n') || t('No lines')}</pre>
      </section>
      <footer>
        <Button icon="again" onClick={logs.refresh}>
          {t('Refresh')}
        </Button>
      </footer>
    </Dialog>
  )
}
