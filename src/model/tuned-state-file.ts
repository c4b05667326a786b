/** A tuned start state in a file of its own, or in a model's. */
import type { StateData, StateShape } from '../backend/backend.ts'
import { runTask, taskPlace } from '../threads/pool.ts'
import { task } from '../threads/task.ts'
import { openCheckpoint } from './checkpoint.ts'
import { quote } from './formats/byte-source.ts'
import type { Checkpoint } from './formats/format.ts'
import { incompatible, readTunedState, TIME_STATE } from './tuned-state.ts'

/** The state in a file of its own (or in a model's). Throws state_incompatible, with the reason in one sentence. */
export function openTunedState(path: string, shape: StateShape): StateData {
  const checkpoint = openCheckpoint(path)
  try {
    refuseOthers(checkpoint)
    const state = readTunedState(checkpoint, shape)
    if (state !== null) return state
    throw incompatible(`${checkpoint.path} holds no tuned state (blocks.N.att.time_state)`)
  } finally {
    checkpoint.close()
  }
}

interface Place {
  readonly path: string
  readonly shape: StateShape
}

const OPEN = taskPlace(import.meta.url, './tuned-state-file.js', 'openTask')

export const openTask = task(({ path, shape }: Place) => openTunedState(path, shape))

/** As openTunedState, while the engine goes on: a file of a large model takes many steps' time. */
export function readTunedStateAside(path: string, shape: StateShape): Promise<StateData> {
  return runTask<Place, StateData>(OPEN, { path, shape })
}

/** A state file with anything else in it is not understood, so it is not half used. A whole model is: it has more. */
function refuseOthers({ path, tensors }: Checkpoint): void {
  if (tensors.has('emb.weight')) return
  const other = [...tensors.keys()].find((name) => !TIME_STATE.test(name))
  if (other !== undefined)
    throw incompatible(`${path} holds ${quote(other)}; a tuned state is blocks.N.att.time_state only`)
}
