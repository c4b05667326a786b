/**
 * Rows of tensors from one GPU to another without the host waiting: copies and events on the streams of both. Directly
 * where the GPUs reach each other's memory and a trial shows that it arrives, else through page-locked host memory.
 * Every launch on its way has a place to land of its own, so that neither GPU waits for the other to be done with it.
 */
import { assert } from '../../errors.ts'
import type { Link, Tensor } from '../backend.ts'
import type { CudaDevice } from './device/device.ts'
import { CudaEvent } from './device/event.ts'
import type { PinnedBuffer } from './device/staging.ts'
import type { DevicePointer } from './kernel/args.ts'
import { CudaTensor } from './resources.ts'

type PeerPath = 'direct' | 'host'

const TRIAL_BYTES = 64 << 10

/** A tensor here and there. */
interface Pair {
  readonly from: DevicePointer
  readonly to: DevicePointer
  readonly rowBytes: number
  readonly bytes: number
}

/** Where a launch's rows are between the two; one for each pair. */
interface Landing {
  readonly places: readonly (DevicePointer | PinnedBuffer)[]
  /** Recorded when the rows have left. */
  readonly sent: CudaEvent
}

export class PeerLink implements Link {
  readonly path: PeerPath
  readonly #from: CudaDevice
  readonly #to: CudaDevice
  readonly #pairs: readonly Pair[]
  readonly #landings: readonly Landing[]
  #numSent = 0

  /** `path` is for tests; the best one that works when absent. */
  constructor(
    from: CudaDevice,
    to: CudaDevice,
    pairs: readonly (readonly [from: Tensor, to: Tensor])[],
    maxFlights: number,
    path?: PeerPath,
  ) {
    // Some machines say that their GPUs reach each other, and then the data does not arrive.
    this.path = path ?? (allowAccess(from, to) && arrives(from, to) ? 'direct' : 'host')
    this.#from = from
    this.#to = to
    this.#pairs = pairs.map(([source, target]) => pairOf(source, target))
    this.#landings = Array.from({ length: maxFlights }, () => this.#createLanding())
  }

  #createLanding(): Landing {
    const places = this.#pairs.map(({ bytes }) =>
      this.path === 'direct' ? this.#to.alloc(bytes) : this.#from.pinned(bytes),
    )
    return { places, sent: new CudaEvent(this.#from) }
  }

  send(rows: number): void {
    const { places, sent } = this.#landings[this.#numSent % this.#landings.length]!
    this.#numSent++
    const [from, to] = [this.#from, this.#to]
    for (const [i, pair] of this.#pairs.entries()) {
      const place = places[i]!
      const bytes = rows * pair.rowBytes
      assert(bytes <= pair.bytes, `${rows} rows over a link for fewer`)
      if (typeof place === 'bigint') copyToPeer(to, place, from, pair.from, bytes)
      else from.downloadAsync(place, pair.from, bytes)
    }
    sent.record()
    sent.holdBack(to)
    for (const [i, pair] of this.#pairs.entries()) {
      const place = places[i]!
      const bytes = rows * pair.rowBytes
      if (typeof place === 'bigint') to.copy(pair.to, place, bytes)
      else to.uploadAsync(pair.to, place, bytes)
    }
  }

  /** After both devices are done. */
  dispose(): void {
    for (const { places, sent } of this.#landings) {
      for (const place of places) {
        if (typeof place === 'bigint') this.#to.free(place)
        else place.dispose()
      }
      sent.dispose()
    }
  }
}

function pairOf(source: Tensor, target: Tensor): Pair {
  assert(source instanceof CudaTensor && target instanceof CudaTensor, 'tensors of other backends')
  assert(source.type === target.type, `a link from ${source.type} to ${target.type}`)
  const [rows = 1] = source.shape
  const bytes = Math.min(source.bytes, target.bytes)
  return { from: source.address, to: target.address, rowBytes: source.bytes / rows, bytes }
}

/** On the stream of the device that has the data. */
function copyToPeer(
  to: CudaDevice,
  target: DevicePointer,
  from: CudaDevice,
  source: DevicePointer,
  bytes: number,
): void {
  const { driver, stream } = from
  driver.call('cuMemcpyPeerAsync', target, to.context, source, from.context, bytes, stream)
}

/** Lets `from` write into the memory of `to`; false where it cannot. */
function allowAccess(from: CudaDevice, to: CudaDevice): boolean {
  // The same GPU: the same memory.
  if (from.context === to.context) return true
  const can = new Int32Array(1)
  from.driver.call('cuDeviceCanAccessPeer', can, from.info.ordinal, to.info.ordinal)
  if (can[0] === 0) return false
  const status = from.driver.functions.cuCtxEnablePeerAccess(to.context, 0)
  return status === 0 || status === from.driver.words.statuses.isReached
}

function arrives(from: CudaDevice, to: CudaDevice): boolean {
  const pattern = Uint32Array.from({ length: TRIAL_BYTES / 4 }, (_, i) => Math.imul(i, 2_654_435_761))
  const [source, target] = [from.alloc(TRIAL_BYTES), to.alloc(TRIAL_BYTES)]
  to.fill(target, 0, TRIAL_BYTES)
  to.synchronize()
  from.upload(source, pattern)
  copyToPeer(to, target, from, source, TRIAL_BYTES)
  from.synchronize()
  const arrived = new Uint32Array(to.download(target, TRIAL_BYTES).buffer)
  from.free(source)
  to.free(target)
  return arrived.every((value, i) => value === pattern[i])
}
