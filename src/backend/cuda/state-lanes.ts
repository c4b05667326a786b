/**
 * The way of states between slots and the host, beside the steps. A lane is a place for one state on the device and one in
 * page-locked memory. Out: the stream of steps copies a slot to the lane's place (microseconds), and the slot is free for
 * anything; the stream for copies brings it to page-locked memory, and another thread from there. In: the same the other
 * way. Events order the two streams; the host looks at them and never waits.
 */
import { assert, SkeinError } from '../../errors.ts'
import type { Flight } from '../flight.ts'
import type { StateData } from '../state-shape.ts'
import type { CudaDevice } from './device/device.ts'
import { CudaEvent } from './device/event.ts'
import type { PinnedBuffer } from './device/staging.ts'
import type { DevicePointer } from './kernel/args.ts'

/**
 * States on their way at once: as many as fit into LANE_BYTES, within these bounds. A lane is taken for as long as the
 * steps that were launched before it run, some 20 to 60 ms, and then 1 to 2 ms on the bus and 5 to 10 on the other
 * thread (7.2B, 34 MB); few lanes would hold up requests that wait to be copied.
 */
const MIN_LANES = 4
const MAX_LANES = 16
/** On the device, and as much page-locked memory. */
const LANE_BYTES = 512 << 20

export function lanesFor(stateBytes: number): number {
  return Math.max(MIN_LANES, Math.min(MAX_LANES, Math.floor(LANE_BYTES / stateBytes)))
}

/** Less is copied at once: another thread takes longer to begin. */
const ASIDE_BYTES = 1 << 18

/** Between slots and a lane's place on the device, on the stream of steps. */
export interface LaneSlot {
  /** Copies the slot's arrays to f32 one after the other. */
  gather(to: DevicePointer): void
  scatter(from: DevicePointer): void
}

interface Lane {
  /** f32, the arrays of a state one after the other. */
  readonly outbox: DevicePointer
  readonly pinned: PinnedBuffer
  /** On the stream of steps: nothing of it uses the lane any more. */
  readonly used: CudaEvent
  /** On the stream for copies: what is between outbox and page-locked memory has been copied. */
  readonly copied: CudaEvent
  isTaken: boolean
  /** The last flight that used the lane. */
  flight: Flight<unknown> | null
}

export class StateLanes {
  readonly #device: CudaDevice
  readonly #bytes: number
  readonly #lanes: readonly Lane[]
  readonly #asideBytes: number

  /** Page-locking the memory takes milliseconds, so it is done here. `asideBytes` is for tests. */
  constructor(device: CudaDevice, bytes: number, asideBytes = ASIDE_BYTES) {
    this.#asideBytes = asideBytes
    this.#device = device
    this.#bytes = bytes
    this.#lanes = Array.from({ length: lanesFor(bytes) }, () => {
      const [used, copied] = [new CudaEvent(device), new CudaEvent(device)]
      device.atEnd(() => {
        used.dispose()
        copied.dispose()
      })
      return { outbox: device.alloc(bytes), pinned: device.pinned(bytes), used, copied, isTaken: false, flight: null }
    })
  }

  get isAnyFree(): boolean {
    return this.#free !== undefined
  }

  /** A lane that is not taken and that the device does not need any more. Flights that nobody polls advance too. */
  get #free(): Lane | undefined {
    for (const { isTaken, flight } of this.#lanes) if (isTaken) void flight?.isDone
    return this.#lanes.find(({ isTaken, used }) => !isTaken && used.isOver)
  }

  read(slot: LaneSlot, into: StateData): Flight<StateData> {
    const lane = this.#take()
    const device = this.#device
    const { copyStream } = device
    slot.gather(lane.outbox)
    lane.used.record()
    lane.used.holdBack(device, copyStream)
    device.downloadAsync(lane.pinned, lane.outbox, this.#bytes, 0, copyStream)
    lane.copied.record(copyStream)
    const flight = new ReadFlight(lane, new HostCopy(device, lane, into, this.#asideBytes), into)
    lane.flight = flight
    return flight
  }

  write(slot: LaneSlot, state: StateData): Flight<void> {
    const lane = this.#take()
    const copy = new HostCopy(this.#device, lane, state, this.#asideBytes)
    const flight = new WriteFlight(this.#device, lane, copy, this.#bytes, slot)
    lane.flight = flight
    return flight
  }

  #take(): Lane {
    // A caller that waits for every flight may arrive before the device is done with the last.
    const lane = this.#free ?? this.#lanes.find(({ isTaken }) => !isTaken)
    assert(lane !== undefined, 'a state was moved while no lane is free')
    lane.used.wait()
    lane.isTaken = true
    return lane
  }
}

/** The same numbers in page-locked memory and in the arrays of a state. */
class HostCopy {
  readonly #device: CudaDevice
  readonly #pairs: readonly (readonly [array: Float32Array, pinned: Float32Array, address: bigint])[]
  readonly #asideBytes: number
  #numLeft = 0
  #error: unknown = null

  constructor(device: CudaDevice, { pinned }: Lane, state: StateData, asideBytes: number) {
    this.#device = device
    this.#asideBytes = asideBytes
    let at = 0
    this.#pairs = state.map((array) => {
      const view = new Float32Array(pinned.buffer, at, array.length)
      const address = pinned.address + BigInt(at)
      at += array.byteLength
      return [array, view, address] as const
    })
  }

  get isUnderWay(): boolean {
    if (this.#error !== null) throw SkeinError.from(this.#error)
    return this.#numLeft > 0
  }

  /** Starts the copy; `done` is called once it is over, at once where it is small. */
  start(direction: 'in' | 'out', done: () => void): void {
    const bytes = this.#pairs.reduce((sum, [array]) => sum + array.byteLength, 0)
    if (bytes <= this.#asideBytes) {
      this.copyNow(direction)
      done()
      return
    }
    this.#numLeft = this.#pairs.length
    for (const [array, , address] of this.#pairs) {
      const [to, from] = direction === 'out' ? [array, address] : [address, array]
      this.#device.copyAside(to, from, array.byteLength, (error) => {
        this.#error ??= error
        this.#numLeft--
        if (this.#numLeft === 0) done()
      })
    }
  }

  copyNow(direction: 'in' | 'out'): void {
    for (const [array, pinned] of this.#pairs) {
      if (direction === 'out') array.set(pinned)
      else pinned.set(array)
    }
  }
}

class ReadFlight implements Flight<StateData> {
  readonly #lane: Lane
  readonly #copy: HostCopy
  readonly #state: StateData
  #phase: 'device' | 'host' | 'done' = 'device'

  constructor(lane: Lane, copy: HostCopy, state: StateData) {
    this.#lane = lane
    this.#copy = copy
    this.#state = state
  }

  get isDone(): boolean {
    if (this.#phase === 'device' && this.#lane.copied.isOver) this.#copyOut()
    return this.#phase === 'done' && !this.#copy.isUnderWay
  }

  result(): StateData {
    if (this.#phase === 'device') {
      this.#lane.copied.wait()
      this.#copy.copyNow('out')
      this.#end()
    }
    // The other thread writes the same numbers; the lane stays taken until it has.
    if (this.#phase === 'host') this.#copy.copyNow('out')
    return this.#state
  }

  #copyOut(): void {
    this.#phase = 'host'
    this.#copy.start('out', () => this.#end())
  }

  #end(): void {
    this.#phase = 'done'
    this.#lane.isTaken = false
  }
}

class WriteFlight implements Flight<void> {
  readonly #device: CudaDevice
  readonly #lane: Lane
  readonly #copy: HostCopy
  readonly #bytes: number
  readonly #slot: LaneSlot
  #hasBegun = false
  #isSent = false

  constructor(device: CudaDevice, lane: Lane, copy: HostCopy, bytes: number, slot: LaneSlot) {
    this.#device = device
    this.#lane = lane
    this.#copy = copy
    this.#bytes = bytes
    this.#slot = slot
  }

  get isDone(): boolean {
    if (!this.#hasBegun) {
      this.#hasBegun = true
      this.#copy.start('in', () => this.#release())
    }
    if (!this.#isSent && !this.#copy.isUnderWay) this.#send()
    return this.#isSent
  }

  result(): void {
    if (this.#isSent) return
    // The other thread may still write the same numbers.
    this.#copy.copyNow('in')
    this.#hasBegun = true
    this.#send()
  }

  /** Work that the stream of steps is given from here on finds the state in its slot. */
  #send(): void {
    const device = this.#device
    const { outbox, pinned, copied, used } = this.#lane
    const { copyStream } = device
    device.uploadAsync(outbox, pinned, this.#bytes, 0, copyStream)
    copied.record(copyStream)
    copied.holdBack(device)
    this.#slot.scatter(outbox)
    used.record()
    this.#isSent = true
    this.#release()
  }

  /** When it is sent and the other thread is done; the lane is free once the device is, too. */
  #release(): void {
    if (this.#isSent && !this.#copy.isUnderWay) this.#lane.isTaken = false
  }
}
