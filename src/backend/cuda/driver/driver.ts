/**
 * The functions of a driver that Skein calls, under CUDA's names and each checked: a failure carries the driver's own name and text,
 * and one that ends the context also the last kernel launched. Knows no driver (see kinds/), and knows nothing of devices' contents.
 */
import { assert, SkeinError } from '../../../errors.ts'
import { type Bound, type Pointer, readString } from '../../ffi.ts'

const I = 'int32'
const U = 'uint32'
const S = 'uint64'
const P = 'pointer'

/** Names and arguments of cuda.h (CUDA 12.0 and later; the _v2 names are what its macros stand for). */
export const SIGNATURES = {
  cuInit: [I, [U]],
  cuDriverGetVersion: [I, [P]],
  cuGetErrorName: [I, [I, P]],
  cuGetErrorString: [I, [I, P]],
  cuDeviceGetCount: [I, [P]],
  cuDeviceGet: [I, [P, I]],
  cuDeviceGetName: [I, [P, I, I]],
  cuDeviceGetUuid_v2: [I, [P, I]],
  cuDeviceGetAttribute: [I, [P, I, I]],
  cuDeviceTotalMem_v2: [I, [P, I]],
  cuDevicePrimaryCtxRetain: [I, [P, I]],
  cuDevicePrimaryCtxRelease_v2: [I, [I]],
  cuCtxSetCurrent: [I, [P]],
  cuDeviceCanAccessPeer: [I, [P, I, I]],
  cuCtxEnablePeerAccess: [I, [P, U]],
  cuStreamCreate: [I, [P, U]],
  cuStreamDestroy_v2: [I, [P]],
  cuStreamSynchronize: [I, [P]],
  cuStreamWaitEvent: [I, [P, P, U]],
  cuStreamBeginCapture_v2: [I, [P, I]],
  cuStreamEndCapture: [I, [P, P]],
  cuGraphInstantiateWithFlags: [I, [P, P, S]],
  cuGraphGetNodes: [I, [P, P, P]],
  cuGraphUpload: [I, [P, P]],
  cuGraphLaunch: [I, [P, P]],
  cuGraphExecDestroy: [I, [P]],
  cuGraphDestroy: [I, [P]],
  cuEventCreate: [I, [P, U]],
  cuEventDestroy_v2: [I, [P]],
  cuEventRecord: [I, [P, P]],
  cuEventSynchronize: [I, [P]],
  cuEventElapsedTime: [I, [P, P, P]],
  cuEventQuery: [I, [P]],
  cuMemGetInfo_v2: [I, [P, P]],
  cuMemAlloc_v2: [I, [P, S]],
  cuMemFree_v2: [I, [P]],
  cuMemHostAlloc: [I, [P, S, U]],
  cuMemFreeHost: [I, [P]],
  cuMemHostRegister_v2: [I, [P, S, U]],
  cuMemHostUnregister: [I, [P]],
  cuMemcpyHtoDAsync_v2: [I, [P, P, S, P]],
  cuMemcpyDtoHAsync_v2: [I, [P, P, S, P]],
  cuMemcpyDtoDAsync_v2: [I, [P, P, S, P]],
  cuMemcpyPeerAsync: [I, [P, P, P, P, S, P]],
  cuMemsetD8Async: [I, [P, 'uint32', S, P]],
  cuModuleLoadData: [I, [P, P]],
  cuModuleUnload: [I, [P]],
  cuModuleGetFunction: [I, [P, P, 'string']],
  cuFuncGetAttribute: [I, [P, I, P]],
  cuFuncSetAttribute: [I, [P, I, I]],
  cuOccupancyMaxActiveBlocksPerMultiprocessor: [I, [P, P, I, S]],
  cuOccupancyMaxActiveClusters: [I, [P, P, P]],
  cuLaunchKernelEx: [I, [P, P, P, P]],
  cuTensorMapEncodeTiled: [I, [P, I, U, P, P, P, P, P, I, I, I, I]],
} as const

export type DriverFunctions = Bound<typeof SIGNATURES>
type DriverFunction = keyof DriverFunctions

/** What another maker's driver has other numbers and words for. */
export interface DriverWords {
  /** "cuda", as --device and messages call it. */
  readonly name: string
  /** Of a device: what cuDeviceGetAttribute takes. */
  readonly attributes: Readonly<Record<'numSms' | 'l2Bytes' | 'sharedBytes', number>>
  /** Of a kernel: what cuFuncGetAttribute and cuFuncSetAttribute take. */
  readonly kernelAttributes: Readonly<Record<'sharedBytes' | 'registers' | 'mostSharedBytes', number>>
  /** What its functions return. */
  readonly statuses: {
    readonly outOfMemory: number
    /** An event has not happened yet. */
    readonly notReady: number
    /** Devices reach each other's memory already; memory is page-locked already. */
    readonly isReached: number
    readonly isLocked: number
    /** After one of these every call on the context fails: the process has to go. */
    readonly sticky: ReadonlySet<number>
    /** An image is damaged, or not for this device or driver. */
    readonly badImage: ReadonlySet<number>
    /** An image comes from a compiler newer than the driver. */
    readonly newerImage: number
  }
  /** How to find the kernel at fault. */
  readonly blockingHint: string
  /** What kernels are compiled for on a device, and whose kernels it can run: those of a capability of CUDA's. */
  chipOf(attribute: (id: number) => number, driver: CudaDriver, device: number): Chip
}

export interface Chip {
  /** "sm_90a": what its machine code is made for. */
  readonly chip: string
  readonly computeCapability: readonly [number, number]
}

/** The driver's functions with their checks. One per device, so that a failure names that device's last launch. */
export class CudaDriver {
  readonly functions: DriverFunctions
  readonly words: DriverWords
  /** The last work put on the stream, for the message of an error that surfaces later. */
  lastLaunch: string | null = null

  constructor(functions: DriverFunctions, words: DriverWords) {
    this.functions = functions
    this.words = words
  }

  /** Calls a function and throws unless it returns CUDA_SUCCESS. */
  call<K extends DriverFunction>(name: K, ...args: Parameters<DriverFunctions[K]>): void {
    // Every function of the table returns a CUresult, and the arguments were checked against its own signature.
    const bound = this.functions[name] as (...args: unknown[]) => number
    const status = bound(...args)
    if (status !== 0) throw this.error(status, name)
  }

  error(status: number, what: string): SkeinError {
    return describeFailure(this.functions, this.words, status, what, this.lastLaunch)
  }
}

/** The error that a CUresult becomes. */
export function describeFailure(
  functions: Pick<DriverFunctions, 'cuGetErrorName' | 'cuGetErrorString'>,
  { name: kind, statuses, blockingHint }: DriverWords,
  status: number,
  what: string,
  lastLaunch: string | null,
): SkeinError {
  const name = textOf(functions.cuGetErrorName, status) ?? `${kind.toUpperCase()} error ${status}`
  const text = textOf(functions.cuGetErrorString, status) ?? 'no text'
  const failure = `${kind} backend, ${what}: ${name} (${text})`
  if (status === statuses.outOfMemory) return new SkeinError('out_of_memory', failure)
  if (!statuses.sticky.has(status)) return new SkeinError('internal', failure)
  const launched = lastLaunch === null ? 'nothing was launched yet' : `last launched: ${lastLaunch}`
  return new SkeinError(
    'kernel_failed',
    `${failure}; ${launched}. The device can no longer be used from this process; ${blockingHint}`,
  )
}

function textOf(lookUp: DriverFunctions['cuGetErrorName' | 'cuGetErrorString'], status: number): string | null {
  const address = new BigUint64Array(1)
  return lookUp(status, address) === 0 && address[0] ? readString(address[0]) : null
}

/** A captured sequence of launches and copies, replayed by one call. Its owner is the one who captured it. */
export class CudaGraph {
  /** Named in the message of an error that surfaces after its launch. */
  readonly label: string
  /** Kernels, copies and fills in it. */
  readonly numNodes: number
  readonly #driver: CudaDriver
  readonly #stream: Pointer
  readonly #graph: Pointer
  readonly #onDispose: () => void
  #executable: Pointer | null = null

  /** Takes over `graph`, a CUgraph that cuStreamEndCapture made. */
  constructor(driver: CudaDriver, stream: Pointer, graph: Pointer, label: string, onDispose: () => void) {
    this.#onDispose = onDispose
    this.#driver = driver
    this.#stream = stream
    this.#graph = graph
    const out = new BigUint64Array(1)
    try {
      driver.call('cuGraphGetNodes', graph, null, out)
      this.numNodes = Number(out[0])
      this.label = `graph "${label}" (${this.numNodes} nodes)`
      driver.call('cuGraphInstantiateWithFlags', out, graph, 0)
      this.#executable = out[0]!
      driver.call('cuGraphUpload', this.#executable, stream)
    } catch (error) {
      // The failure that ended it is the one to report, so their own statuses are not looked at.
      if (this.#executable !== null) driver.functions.cuGraphExecDestroy(this.#executable)
      driver.functions.cuGraphDestroy(graph)
      throw error
    }
  }

  /** Puts a replay on the stream; does not wait for it. */
  launch(): void {
    assert(this.#executable !== null, 'a graph launched after dispose()')
    this.#driver.lastLaunch = this.label
    const status = this.#driver.functions.cuGraphLaunch(this.#executable, this.#stream)
    if (status !== 0) throw this.#driver.error(status, `cuGraphLaunch of ${this.label}`)
  }

  dispose(): void {
    if (this.#executable === null) return
    this.#driver.call('cuGraphExecDestroy', this.#executable)
    this.#driver.call('cuGraphDestroy', this.#graph)
    this.#executable = null
    this.#onDispose()
  }
}
