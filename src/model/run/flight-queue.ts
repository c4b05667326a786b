/**
 * Flights of a recorded program: batches in turn, results in order, and rows that feed what the flight before drew. On
 * a program without flights a step has run, or been started, when it is launched, and what it feeds is looked up here. Knows no slots.
 */
import type { Flight, Program, ProgramFlight } from '../../backend/backend.ts'
import { type Batch, type Capacity, createBatch } from '../../backend/batch.ts'
import { assert } from '../../errors.ts'
import type { BatchRow, RowResult } from '../runner.ts'
import { fedDraw, idleResult, type PackedRow, packMasks, packRows, readDrawn, runsOn } from './step-packing.ts'

/** Reads rows [start, start + count) of the last step; later ones may overwrite them at once. */
type ReadRows = (start: number, count: number) => Flight<Float32Array>

/** Readers of a step's logits and of the hidden states behind them. */
interface StepReaders {
  readonly logits: ReadRows
  readonly hidden: ReadRows
}

/** Reads of one row of a step; null where it was not asked for. */
interface RowReads {
  readonly logits: Flight<Float32Array> | null
  readonly hidden: Flight<Float32Array> | null
}

const NO_WAIT = () => {}
const NO_READS: RowReads = { logits: null, hidden: null }

export class FlightQueue {
  readonly max: number
  readonly feedsDraws: boolean
  /** As in Runner. */
  readonly overlaps: boolean
  readonly #program: Program
  readonly #states: Int32Array
  readonly #readers: StepReaders
  readonly #batches: readonly Batch[]
  /** On their way, oldest first. */
  readonly #flights: StepFlight[] = []
  #last: StepFlight | null = null
  #lastFlown: ProgramFlight | null = null
  #numLaunched = 0

  /** `states`: which state of the pool is each slot's now. */
  constructor(program: Program, capacity: Capacity, states: Int32Array, readers: StepReaders) {
    this.max = program.flights?.max ?? 1
    this.feedsDraws = program.flights?.feedsDraws ?? true
    this.#program = program
    this.#states = states
    this.#readers = readers
    this.overlaps = program.start !== undefined && program.flights === undefined
    this.#batches = Array.from({ length: this.max }, () => createBatch(capacity))
  }

  launch(rows: readonly BatchRow[]): Flight<RowResult[]> {
    assert(this.#flights.length < this.max, `${this.max} flights are on their way already`)
    const batch = this.#batches[this.#numLaunched % this.#batches.length]!
    const before = this.#last
    const flight =
      this.#program.flights === undefined ? this.#runHere(batch, rows, before) : this.#launch(batch, rows, before)
    this.#numLaunched++
    this.#last = flight
    return flight
  }

  /** As in Runner. */
  drawLater(masks: readonly (Uint32Array | null)[]): void {
    const batch = this.#batches[(this.#numLaunched - 1) % this.max]!
    packMasks(batch, masks)
    this.#program.flights!.drawLater!(batch)
  }

  get waitsForDraws(): boolean {
    return this.#lastFlown?.isComputed === true
  }

  /** Where the device looks up what a row feeds. */
  #launch(batch: Batch, rows: readonly BatchRow[], before: StepFlight | null): StepFlight {
    const packed = packRows(batch, rows, this.#states)
    // The facts of a row that are needed when its flight ends; the row itself may have changed by then.
    const feeds = rows.map((row) => ({ draw: fedDraw(row), stops: row.stops, numSamples: row.samples.length }))
    const flown = this.#program.flights!.launch(batch)
    this.#lastFlown = flown
    const reads = packed.map((row) => this.#readsOf(row))
    const isDone = () =>
      flown.isDone && reads.every(({ logits, hidden }) => logits?.isDone !== false && hidden?.isDone !== false)
    const landing =
      flown.landing &&
      Promise.all([flown.landing, ...reads.flatMap(({ logits, hidden }) => [logits?.landing, hidden?.landing])])
    const flight: StepFlight = new StepFlight(isDone, landing, () => {
      if (this.#flights[0] !== flight) this.#flights[0]!.result()
      flown.wait()
      this.#flights.shift()
      return packed.map((row, b) => {
        const fed = feeds[b]!
        const isIdle = fed.draw !== null && !runsOn(before!.drawn[fed.draw]!, fed)
        return isIdle ? idleResult(fed.numSamples) : this.#read(batch, row, reads[b]!)
      })
    })
    this.#flights.push(flight)
    return flight
  }

  /** Where what a row feeds is looked up here. A step that overlaps has only begun. */
  #runHere(batch: Batch, rows: readonly BatchRow[], before: StepFlight | null): StepFlight {
    // Its logits, too, are read before this step overwrites them.
    before?.result()
    const known = rows.map((row) => knownRow(row, before))
    const packed = packRows(
      batch,
      known.filter((row) => row !== null),
      this.#states,
    )
    const numIdle = known.map((row, b) => (row === null ? rows[b]!.samples.length : null))
    const wait = packed.length > 0 ? this.#begin(batch) : NO_WAIT
    return new StepFlight(
      () => true,
      undefined,
      () => {
        wait()
        let next = 0
        return numIdle.map((numSamples) => {
          if (numSamples !== null) return idleResult(numSamples)
          const ran = packed[next++]!
          return this.#read(batch, ran, this.#readsOf(ran))
        })
      },
    )
  }

  #begin(batch: Batch): () => void {
    if (this.overlaps) return this.#program.start!(batch)
    this.#program.run(batch)
    return NO_WAIT
  }

  #readsOf({ hasAllLogits, logitRow, numTokens, numHidden, hiddenRow }: PackedRow): RowReads {
    if (!hasAllLogits && numHidden === 0) return NO_READS
    return {
      logits: hasAllLogits ? this.#readers.logits(logitRow, numTokens) : null,
      hidden: numHidden > 0 ? this.#readers.hidden(hiddenRow, numHidden) : null,
    }
  }

  #read(batch: Batch, row: PackedRow, { logits, hidden }: RowReads): RowResult {
    const drawn = row.logprobs.map((k, i) => readDrawn(batch, row.sample + i, k))
    if (logits === null && hidden === null) return { drawn }
    return {
      drawn,
      ...(logits === null ? {} : { logits: logits.result() }),
      ...(hidden === null ? {} : { hidden: hidden.result() }),
    }
  }
}

class StepFlight implements Flight<RowResult[]> {
  readonly landing?: Promise<unknown>
  /** Null once it has landed: both close over the flight before, which closes over the one before it, and so on. */
  #flying: { readonly isOver: () => boolean; readonly finish: () => RowResult[] } | null
  #results: RowResult[] = []
  readonly #drawn: number[] = []

  constructor(isOver: () => boolean, landing: Promise<unknown> | undefined, finish: () => RowResult[]) {
    if (landing) this.landing = landing
    this.#flying = { isOver, finish }
  }

  get isDone(): boolean {
    return this.#flying === null || this.#flying.isOver()
  }

  get drawn(): readonly number[] {
    this.result()
    return this.#drawn
  }

  result(): RowResult[] {
    if (this.#flying === null) return this.#results
    this.#results = this.#flying.finish()
    this.#flying = null
    for (const { drawn } of this.#results) for (const { token } of drawn) this.#drawn.push(token)
    return this.#results
  }
}

/** The row with the token that it feeds; null where it does not run. */
function knownRow(row: BatchRow, before: StepFlight | null): BatchRow | null {
  const draw = fedDraw(row)
  if (draw === null) return row
  const token = before?.drawn[draw]
  assert(token !== undefined, `a row feeds draw ${draw}, which the flight before did not make`)
  return runsOn(token, row) ? { ...row, tokens: Int32Array.of(token) } : null
}
