// A runner for benches that handle large states. The states are real CPU states (4096 channels; with 32 layers those of
// a 7.2B model); the model is a pause of 10 ms that draws a fixed token. Needs a build.
import { createCpuBackend } from '../dist/backend/cpu/cpu.js'

const NUM_SLOTS = 16
const PAUSE_MS = 10

export const tokenBytes = { bytesOf: () => Uint8Array.of(97), encode: () => new Int32Array(0) }
/** Time that steps have waited since it was set to 0. */
export const paused = { ms: 0 }

const nothing = new Int32Array(new SharedArrayBuffer(4))

function pause() {
  const began = performance.now()
  Atomics.wait(nothing, 0, 0, PAUSE_MS)
  paused.ms += performance.now() - began
}

export function createRunner(layers) {
  const stateShape = { layers, channels: 4096, heads: 64, headSize: 64 }
  const backend = createCpuBackend({ threads: 1 })
  const states = backend.statePool(stateShape, NUM_SLOTS)
  for (let slot = 0; slot < NUM_SLOTS; slot++) states.clear(slot) // touches its memory
  const step = (rows) => {
    pause()
    return rows.map(({ samples }) => ({
      drawn: samples.map(() => ({ token: 5, logprob: null })),
    }))
  }
  return {
    info: {
      architecture: 'rwkv7',
      vocabSize: 10,
      numParameters: 0,
      stateShape,
      weightType: 'f32',
      weightBytes: 0,
      tableBytes: 0,
      stateBytes: states.bytesPerSlot,
      fingerprint: '',
      device: backend.description,
    },
    numSlots: NUM_SLOTS,
    maxTokens: 512,
    maxLogits: NUM_SLOTS,
    maxSamples: NUM_SLOTS,
    maxFlights: 1,
    feedsDraws: true,
    stepSize: (tokens) => tokens,
    step,
    launch(rows) {
      const results = step(rows)
      return { isDone: true, result: () => results }
    },
    clearSlot: (slot) => states.clear(slot),
    copySlot: (from, to) => states.copy(from, to),
    poisonSlot: (slot) => states.poison(slot),
    resetPenalties: () => {},
    readState: (slot, into) => states.read(slot, into),
    get canMove() {
      return states.canMove
    },
    writeState: (slot, state) => states.write(slot, state),
    dispose: () => backend.dispose(),
  }
}
