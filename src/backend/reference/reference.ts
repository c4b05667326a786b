/**
 * The `reference` backend: every op of backend.ts in plain TypeScript and float64. It is what the other backends are
 * tested against, and it runs small models where no native library can be built.
 */
import type { Backend, Ops, Program } from '../backend.ts'
import type { Batch, Capacity } from '../batch.ts'
import { doneFlight } from '../flight.ts'
import { HOST_GUESSING } from '../host-guessing.ts'
import * as ops from './ops.ts'
import { sample } from './sample.ts'
import { RefPenaltyPool, RefStatePool } from './states.ts'
import { createTensor, readMatrix, valuesOf } from './tensors.ts'

export function createReferenceBackend(): Backend {
  return {
    name: 'reference',
    description: 'reference: float64 TypeScript, 1 thread',
    guessing: HOST_GUESSING,
    drawsLater: false,
    tensor: createTensor,
    activation: createTensor,
    readTensor: (tensor, start = 0, count) =>
      doneFlight(Float32Array.from(valuesOf(tensor).subarray(start, count === undefined ? undefined : start + count))),
    writeTensor: (tensor, values) => valuesOf(tensor).set(values),
    matrix: readMatrix,
    table: (source) => readMatrix(source, source.dtype),
    hostTable: (source) => readMatrix(source, source.dtype),
    statePool: (shape, numSlots) => new RefStatePool(shape, numSlots),
    penaltyPool: (_vocabSize, numSlots) => new RefPenaltyPool(numSlots),
    record,
    dispose() {},
  }
}

/** A program is the list of its ops as closures over their operands. */
function record(_capacity: Capacity, build: (ops: Ops) => void): Program {
  const commands: ((batch: Batch) => void)[] = []
  build({
    embed: (...args) => commands.push((batch) => ops.embed(batch, ...args)),
    shiftMix: (...args) => commands.push((batch) => ops.shiftMix(batch, ...args)),
    linear: (jobs) => commands.push((batch) => ops.linear(batch.numTokens, jobs)),
    wkv7: (...args) => commands.push((batch) => ops.wkv7(batch, ...args)),
    deepEmbed: (...args) => commands.push((batch) => ops.deepEmbed(batch, ...args)),
    ddlerp: (...args) => commands.push((batch) => ops.ddlerp(batch, ...args)),
    wkv6: (...args) => commands.push((batch) => ops.wkv6(batch, ...args)),
    gatedAdd: (...args) => commands.push((batch) => ops.gatedAdd(batch, ...args)),
    gatherNorm: (...args) => commands.push((batch) => ops.gatherNorm(batch, ...args)),
    logits: (y, x, weight) => commands.push((batch) => ops.linear(batch.numLogits, [{ y, x, weight }])),
    sample: (...args) => commands.push((batch) => sample(batch, ...args)),
  })
  return {
    run: (batch) => {
      for (const command of commands) command(batch)
    },
    dispose() {},
  }
}
