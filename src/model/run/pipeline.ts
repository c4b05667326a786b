/**
 * A model over several devices by layers, as one model on one backend: what a runner asks of it is done by every stage
 * for its own layers, and what the layers carry goes from stage to stage. A step that is launched is put on all devices
 * at once, each waiting for the one before, so several steps at a time keep all of them busy. Knows no requests; how
 * tensors get from device to device is the link's business.
 */
import type {
  Backend,
  Connect,
  Flight,
  Link,
  Ops,
  Preparation,
  Program,
  ProgramFlight,
  ProgramFlights,
  StateData,
  StatePool,
  StateShape,
} from '../../backend/backend.ts'
import type { Batch, Capacity } from '../../backend/batch.ts'
import { allFlights } from '../../backend/flight.ts'
import { checkState, createState, layersOf } from '../../backend/state-shape.ts'
import { assert } from '../../errors.ts'
import type { Carried, Model } from '../model.ts'

/** Some layers of a model and the device they are on. */
export interface Stage {
  readonly model: Model
  readonly backend: Backend
}

/** The stages in order: the first has the embedding, the last the head. The backends belong to the result. */
export function joinStages(stages: readonly Stage[], connect: Connect) {
  const models = stages.map(({ model }) => model)
  const total = (of: (model: Model) => number) => models.reduce((sum, one) => sum + of(one), 0)
  const last = models.at(-1)
  assert(last !== undefined && last.output !== null, 'a pipeline without the last layer')
  const pipeline = new Pipeline(stages, connect)
  const model: Model = {
    ...last,
    weightBytes: total(({ weightBytes }) => weightBytes),
    tableBytes: total(({ tableBytes }) => tableBytes),
    stateShape: { ...last.stateShape, layers: total(({ stateShape }) => stateShape.layers) },
    forward: (ops, states, capacity) => pipeline.recordStage(stages.length - 1, ops, states, capacity),
  }
  return { model, backend: pipeline.backend }
}

class Pipeline {
  readonly backend: Backend
  readonly #stages: readonly Stage[]
  readonly #connect: Connect
  /** For each recorded stage, the activations that it passes on. */
  readonly #carried: Carried[] = []
  #states: PipelineStates | null = null

  constructor(stages: readonly Stage[], connect: Connect) {
    this.#stages = stages
    this.#connect = connect
    // Logits and penalties are where the head is.
    const { backend: last } = stages.at(-1)!
    this.backend = {
      ...last,
      description: describeStages(stages),
      guessing: null,
      drawsLater: false,
      statePool: (shape, numSlots) => this.#createStates(shape, numSlots),
      record: (capacity, build) => this.#record(capacity, build),
      heldBytes: () => stages.reduce((sum, { backend }) => sum + (backend.heldBytes?.() ?? 0), 0),
      dispose() {
        for (const { backend } of stages) backend.dispose()
      },
    }
  }

  #createStates(shape: StateShape, numSlots: number): StatePool {
    const parts = this.#stages.map(({ model, backend }) => backend.statePool(model.stateShape, numSlots))
    this.#states = new PipelineStates(shape, numSlots, parts)
    return this.#states
  }

  recordStage(s: number, ops: Ops, states: StatePool, capacity: Capacity): Carried {
    assert(states instanceof PipelineStates, 'a state pool of another backend')
    const carried = this.#stages[s]!.model.forward(ops, states.parts[s]!, capacity)
    this.#carried[s] = carried
    return carried
  }

  /** `build` records the last stage and what follows it. */
  #record(capacity: Capacity, build: (ops: Ops) => void): Program {
    const states = this.#states
    assert(states !== null, 'a pipeline is recorded before it has states')
    const flights = this.#stages.length
    const inner = { ...capacity, logits: 0, samples: 0, flights }
    const programs = this.#stages.map(({ backend }, s) =>
      s === this.#stages.length - 1
        ? backend.record({ ...capacity, flights }, build)
        : backend.record(inner, (ops) => void this.recordStage(s, ops, states, inner)),
    )
    const links = this.#stages.slice(1).map(({ backend }, i) => {
      const [from, to] = [this.#carried[i]!, this.#carried[i + 1]!]
      const pairs = from.map((tensor, k) => [tensor, to[k]!] as const)
      return this.#connect(this.#stages[i]!.backend, backend, pairs, flights)
    })
    return new PipelineProgram(programs, links)
  }
}

function describeStages(stages: readonly Stage[]): string {
  const parts = stages.map(({ model: { stateShape }, backend }) => {
    const { layers } = stateShape
    return `${layers} ${layers === 1 ? 'layer' : 'layers'} on ${backend.description}`
  })
  return `pipeline of ${parts.join('; ')}`
}

class PipelineProgram implements Program {
  readonly flights: ProgramFlights
  readonly #programs: readonly Program[]
  readonly #links: readonly Link[]

  constructor(programs: readonly Program[], links: readonly Link[]) {
    this.#programs = programs
    this.#links = links
    // Draws are on the last device, and tokens are fed to the first.
    const launch = (batch: Batch) => this.#launch(batch)
    this.flights = { max: programs.length, feedsDraws: false, launch }
  }

  /** All stages replay graphs, or none. */
  get usesGraphs(): boolean {
    return this.#programs.some(({ usesGraphs }) => usesGraphs === true)
  }

  set usesGraphs(uses: boolean) {
    for (const program of this.#programs) if (program.usesGraphs !== undefined) program.usesGraphs = uses
  }

  preparations(): Preparation[] {
    return this.#programs.flatMap((program) => program.preparations?.() ?? [])
  }

  run(batch: Batch): void {
    this.#launch(batch).wait()
  }

  /** Without waiting, where the devices can; the others run their stage at once. */
  #launch(batch: Batch): ProgramFlight {
    for (let t = 0; t < batch.numTokens; t++)
      assert(batch.tokens[t]! >= 0, 'a row of a pipeline feeds a draw of the flight before')
    const inner = { ...batch, numLogits: 0, numSamples: 0 }
    const flights = this.#programs.map((program, s) => {
      const flight = launchOn(program, s === this.#programs.length - 1 ? batch : inner)
      this.#links[s]?.send(batch.numTokens)
      return flight
    })
    const last = flights.at(-1)
    return {
      // Done when all others are.
      get isDone() {
        return last?.isDone !== false
      },
      wait() {
        for (const flight of flights) flight?.wait()
      },
    }
  }

  dispose(): void {
    for (const program of this.#programs) program.dispose()
    for (const link of this.#links) link.dispose()
  }
}

/** Null where the program has run. */
function launchOn(program: Program, batch: Batch): ProgramFlight | null {
  if (program.flights !== undefined) return program.flights.launch(batch)
  program.run(batch)
  return null
}

/** Each stage holds the states of its own layers; from outside it is one state, as on one device. */
class PipelineStates implements StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  /** By stage. */
  readonly parts: readonly StatePool[]

  constructor(shape: StateShape, numSlots: number, parts: readonly StatePool[]) {
    this.shape = shape
    this.numSlots = numSlots
    this.parts = parts
  }

  get bytesPerSlot(): number {
    return this.parts.reduce((sum, { bytesPerSlot }) => sum + bytesPerSlot, 0)
  }

  clear(slot: number): void {
    for (const part of this.parts) part.clear(slot)
  }

  poison(slot: number): void {
    for (const part of this.parts) part.poison(slot)
  }

  copy(from: number, to: number): void {
    for (const part of this.parts) part.copy(from, to)
  }

  get canMove(): boolean {
    return this.parts.every(({ canMove }) => canMove)
  }

  read(slot: number, into = createState(this.shape)): Flight<StateData> {
    const own = this.#viewsOf(into)
    return allFlights(
      this.parts.map((part, p) => part.read(slot, own[p])),
      () => into,
    )
  }

  /** The shape is looked at before the first part is written: a refused state changes nothing. */
  write(slot: number, state: StateData): Flight<void> {
    checkState(this.shape, state)
    const own = this.#viewsOf(state)
    return allFlights(
      this.parts.map((part, p) => part.write(slot, own[p]!)),
      () => {},
    )
  }

  /** The part of a whole state that belongs to each stage. */
  #viewsOf(state: StateData): StateData[] {
    let first = 0
    return this.parts.map(({ shape: { layers } }) => {
      const view = layersOf(this.shape, state, first, first + layers)
      first += layers
      return view
    })
  }
}
