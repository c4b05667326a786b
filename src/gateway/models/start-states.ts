/**
 * Changes the start states of a model while its workers answer: each worker is told in turn, and future processes get
 * the new states once all have accepted. If one refuses, the ones before it are restored. It starts no worker; engines
 * know how to read the files.
 */
import type { EngineClient } from '../../engine/client.ts'
import { SkeinError } from '../../errors.ts'
import type { Fleet } from '../fleet/fleet.ts'
import type { FleetWorker } from '../fleet/fleet-worker.ts'
import type { StartStateFile } from '../fleet/launch.ts'

interface StartStateChange {
  /** They replace states of the same names. */
  readonly add: readonly StartStateFile[]
  readonly remove: readonly string[]
}

/** What a worker was told; `undo` reverts it. */
interface Step {
  readonly worker: FleetWorker
  readonly undo: () => Promise<unknown>
}

/** Waits for workers that load or have crashed. Rethrows the refusal of the first worker that refuses. */
export async function changeStartStates(fleet: Fleet, model: string, change: StartStateChange): Promise<void> {
  // A worker that crashes meanwhile comes back as another process, which has not been told.
  const told = new Set<EngineClient>()
  const steps: Step[] = []
  try {
    for (let next = await untold(fleet, model, told); next !== null; ) {
      const { worker, engine } = next
      await tell(worker, engine, change, steps)
      told.add(engine)
      next = await untold(fleet, model, told)
    }
    if (told.size === 0 && change.add.length > 0) throw notReady(fleet, model)
  } catch (thrown) {
    for (const step of steps.reverse()) await putBack(step)
    throw thrown
  }
  for (const worker of fleet.workersOf(model)) worker.keepStartStates(changed(worker.launch.startStates, change))
}

/** Waits for a worker that has not been told, as long as one may still become ready. */
async function untold(
  fleet: Fleet,
  model: string,
  told: ReadonlySet<EngineClient>,
): Promise<{ readonly worker: FleetWorker; readonly engine: EngineClient } | null> {
  for (;;) {
    const workers = fleet.workersOf(model)
    for (const worker of workers) {
      const engine = worker.client
      if (engine !== null && !told.has(engine)) return { worker, engine }
    }
    if (!workers.some(({ state }) => state === 'loading' || state === 'restarting')) return null
    await nextChange(fleet)
  }
}

function nextChange(fleet: Fleet): Promise<void> {
  return new Promise((resolve) => {
    const end = fleet.listen(() => {
      end()
      resolve()
    })
  })
}

async function tell(
  worker: FleetWorker,
  engine: EngineClient,
  { add, remove }: StartStateChange,
  steps: Step[],
): Promise<void> {
  const before = new Map(worker.launch.startStates.map((state) => [state.name, state]))
  const put = (state: StartStateFile) => engine.call('startStates.add', { ...state, replace: true })
  const drop = (name: string) => engine.call('startStates.remove', { name })
  for (const state of add) {
    await put(state)
    const old = before.get(state.name)
    steps.push({ worker, undo: () => (old === undefined ? drop(state.name) : put(old)) })
  }
  for (const name of remove) {
    const old = before.get(name)
    if (old === undefined) continue
    await drop(name)
    steps.push({ worker, undo: () => put(old) })
  }
}

/** A process that has gone since will come back with the old states anyway. */
async function putBack({ worker, undo }: Step): Promise<void> {
  await undo().catch((thrown) => {
    const { message } = SkeinError.from(thrown)
    worker.log.add(`skein: a start state could not be put back: ${message}`)
  })
}

function changed(states: readonly StartStateFile[], { add, remove }: StartStateChange): StartStateFile[] {
  const gone = new Set([...remove, ...add.map(({ name }) => name)])
  return [...states.filter(({ name }) => !gone.has(name)), ...add]
}

function notReady(fleet: Fleet, model: string): SkeinError {
  const reason = fleet.workersOf(model)[0]?.reason ?? 'stopped'
  return new SkeinError('model_not_loaded', `the model is not ready: ${reason}`)
}
