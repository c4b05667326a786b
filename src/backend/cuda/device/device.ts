/**
 * One CUDA device as Skein uses it: its primary context, a stream on which steps happen in order and
 * one for copies beside them, device memory
 * under a budget, kernels, and page-locked staging for copies. Used from one thread. Knows no op of a model.
 */
import { assert } from '../../../errors.ts'
import { copyMemoryAside, type Memory, type Pointer } from '../../ffi.ts'
import { NativeArena } from '../driver/arena.ts'
import { simulated } from '../driver/cards.ts'
import { type DeviceInfo, describeDevice, findDevice } from '../driver/device-info.ts'
import { type CudaDriver, CudaGraph } from '../driver/driver.ts'
import { type DevicePointer, type KernelArg, KernelArgs } from '../kernel/args.ts'
import { createKernelImages } from '../kernel/image.ts'
import { type Defines, type Kernel, type KernelImages, KernelStore, type KernelVariant } from '../kernel/kernel.ts'
import { type Dim3, Launcher, type LaunchOptions } from '../kernel/launch.ts'
import { ABSENT, absentKind, type LaunchListener } from '../kinds/absent.ts'
import { CUDA } from '../kinds/cuda.ts'
import type { DriverKind } from '../kinds/kind.ts'
import { DeviceMemory, deviceFree } from './memory.ts'
import { PinnedBuffer, Staging } from './staging.ts'
import { timeOnStream } from './timing.ts'

export interface DeviceOptions {
  /** Index as the driver counts (CUDA_VISIBLE_DEVICES applies), or a UUID as nvidia-smi -L prints it. */
  readonly device: number | string
  /** Most device memory to use; all that is free, less a reserve for the driver's own needs, when absent. */
  readonly memoryBytes?: number
  /** Where kernel(file) looks; kernels/cuda when absent. */
  readonly kernelFolder?: string
  /** CUDA when absent. */
  readonly kind?: DriverKind
}

/** Without a budget of its own a device takes what is free. */
interface OwnOptions extends Pick<DeviceOptions, 'memoryBytes'> {
  readonly images: KernelImages
}

/** Left to the driver: local memory of kernels, graphs, cuBLASLt's own buffers. */
const RESERVE_BYTES = 512 << 20
/** CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
const NON_BLOCKING = 1
const CAPTURE_THREAD_LOCAL = 1

/** The context that the calling thread's driver calls go to; several devices take turns. */
let currentContext: Pointer | null = null

export class CudaDevice {
  readonly info: DeviceInfo
  readonly kind: DriverKind
  readonly memory: DeviceMemory
  /** For structs and arguments that live as long as the device; a program has an arena of its own. */
  readonly arena = new NativeArena()
  readonly #driver: CudaDriver
  readonly #context: Pointer
  readonly #stream: Pointer
  readonly #copyStream: Pointer
  readonly #images: KernelImages
  readonly #kernels: KernelStore
  readonly #launcher: Launcher
  readonly #staging: Staging
  readonly #pinned = new Set<PinnedBuffer>()
  readonly #graphs = new Set<CudaGraph>()
  readonly #atEnd: (() => void)[] = []
  #isCapturing = false
  /** Copies of host memory on other threads. */
  #numAside = 0
  /** Given back when these are over. */
  #isLeaving = false
  #isDisposed = false

  static open(options: DeviceOptions): CudaDevice {
    const { kind = CUDA } = options
    const driver = kind.open()
    const info = simulated(describeDevice(driver, findDevice(driver, options.device)))
    const images = createKernelImages(info, kind, options.kernelFolder)
    return new CudaDevice(kind, driver, info, { ...options, images })
  }

  /**
   * A device that is not here: nothing runs on it. The `images` are asked for the kernels that would, and `onLaunch` hears of
   * their launches.
   */
  static absent(info: DeviceInfo, options: OwnOptions, onLaunch: LaunchListener = () => {}): CudaDevice {
    return new CudaDevice(absentKind(onLaunch), ABSENT.open(info), info, options)
  }

  private constructor(kind: DriverKind, driver: CudaDriver, info: DeviceInfo, options: OwnOptions) {
    this.kind = kind
    this.#driver = driver
    this.info = info
    this.#images = options.images
    const out = new BigUint64Array(1)
    driver.call('cuDevicePrimaryCtxRetain', out, info.ordinal)
    this.#context = out[0]!
    this.enter()
    driver.call('cuStreamCreate', out, NON_BLOCKING)
    this.#stream = out[0]!
    driver.call('cuStreamCreate', out, NON_BLOCKING)
    this.#copyStream = out[0]!
    // A simulated card has less.
    const free = Math.min(deviceFree(driver), info.totalBytes)
    const budget = options.memoryBytes ?? Math.max(free - RESERVE_BYTES, free / 2)
    this.memory = new DeviceMemory(driver, budget)
    this.#kernels = new KernelStore(driver, options.images)
    const form = kind.launchForm(driver, this.arena, this.#stream, info.computeCapability)
    this.#launcher = new Launcher(driver, form, info.sharedBytesPerBlock)
    this.#staging = new Staging(driver, this.#stream)
  }

  /** Nothing runs on it. */
  get isAbsent(): boolean {
    return !this.kind.runs
  }

  get name(): string {
    return this.info.name
  }

  get computeCapability(): readonly [number, number] {
    return this.info.computeCapability
  }

  get numSms(): number {
    return this.info.numSms
  }

  get totalBytes(): number {
    return this.info.totalBytes
  }

  /** "cuda:0 NVIDIA H200 (9.0, 132 SMs, 140 GiB)" */
  get description(): string {
    const { ordinal, name, computeCapability, numSms, totalBytes } = this.info
    const gib = (totalBytes / 2 ** 30).toFixed(0)
    return `${this.kind.name}:${ordinal} ${name} (${computeCapability.join('.')}, ${numSms} SMs, ${gib} GiB)`
  }

  /** The CUstream, for libraries that put work on it themselves. */
  get stream(): Pointer {
    this.enter()
    return this.#stream
  }

  /** A second CUstream, for copies from and to the host beside the steps. Events put the two in order. */
  get copyStream(): Pointer {
    this.enter()
    return this.#copyStream
  }

  /** The CUcontext, for copies between devices. */
  get context(): Pointer {
    return this.#context
  }

  /** The checked functions of the driver, for libraries that need one this class does not wrap. */
  get driver(): CudaDriver {
    this.enter()
    return this.#driver
  }

  get isCapturing(): boolean {
    return this.#isCapturing
  }

  /** Makes this the device that the thread's calls go to; every method does it. */
  enter(): void {
    assert(!this.#isDisposed, 'a cuda device used after dispose()')
    if (currentContext === this.#context) return
    this.#driver.call('cuCtxSetCurrent', this.#context)
    currentContext = this.#context
  }

  /** Bytes that alloc could still hand out. */
  freeBytes(): number {
    this.enter()
    return this.memory.freeBytes
  }

  /** Uncleared memory, 256-byte aligned; throws out_of_memory with the numbers. Not while capturing. */
  alloc(bytes: number): DevicePointer {
    this.#enterEager('alloc')
    return this.memory.alloc(bytes)
  }

  /** Gives memory back at once; what still uses it is waited for. */
  free(pointer: DevicePointer): void {
    this.#enterEager('free')
    this.synchronize()
    this.memory.free(pointer)
  }

  /** Copies to `to` + `at`. `values` may be changed when this returns; the copy is in order with the stream. */
  upload(to: DevicePointer, values: ArrayBufferView, at = 0): void {
    this.#enterEager('upload')
    this.#staging.upload(to + BigInt(at), values)
  }

  /** A copy of `bytes` bytes from `from`, after everything before it on the stream. */
  download(from: DevicePointer, bytes: number): Uint8Array<ArrayBuffer> {
    this.#enterEager('download')
    return this.#staging.download(from, bytes)
  }

  /** Copies from page-locked memory, which must stay as it is until the copy has run. Capturable. */
  uploadAsync(to: DevicePointer, from: PinnedBuffer, bytes: number, at = 0, stream = this.#stream): void {
    this.enter()
    assert(at + bytes <= from.bytes && !from.isDisposed, 'uploadAsync beyond its pinned buffer')
    const source = from.address + BigInt(at)
    this.#driver.call('cuMemcpyHtoDAsync_v2', to, source, bytes, stream)
  }

  /** Copies to page-locked memory; readable after synchronize(). Capturable. */
  downloadAsync(to: PinnedBuffer, from: DevicePointer, bytes: number, at = 0, stream = this.#stream): void {
    this.enter()
    assert(at + bytes <= to.bytes && !to.isDisposed, 'downloadAsync beyond its pinned buffer')
    const target = to.address + BigInt(at)
    this.#driver.call('cuMemcpyDtoHAsync_v2', target, from, bytes, stream)
  }

  /** Sets bytes on the device, in stream order. Capturable. */
  fill(to: DevicePointer, byte: number, bytes: number): void {
    this.enter()
    this.#driver.call('cuMemsetD8Async', to, byte, bytes, this.#stream)
  }

  /** Copies within the device, in stream order. Capturable. */
  copy(to: DevicePointer, from: DevicePointer, bytes: number): void {
    this.enter()
    this.#driver.call('cuMemcpyDtoDAsync_v2', to, from, bytes, this.#stream)
  }

  /** Page-locked host memory, zeroed; freed with the device if not before. */
  pinned(bytes: number): PinnedBuffer {
    this.#enterEager('pinned')
    const forget = () => this.#pinned.delete(buffer)
    const buffer = new PinnedBuffer(this.#driver, bytes, forget, !this.isAbsent)
    this.#pinned.add(buffer)
    return buffer
  }

  /** The extern "C" kernel `name` of kernels/cuda/<file>.cu, compiled at first use. Not while capturing. */
  kernel(file: string, name: string, defines: Defines = {}): Kernel {
    this.#enterEager(`kernel ${name}`)
    return this.#kernels.kernel(file, name, defines)
  }

  /** Begins to compile kernels that will be asked for, as far as that is needed; returns how many. */
  compileAhead(kernels: readonly KernelVariant[]): number {
    return this.#images.compileAhead(kernels)
  }

  /** An argument list, in `arena` (the device's own unless the list should go earlier). */
  args(values: readonly KernelArg[], arena: NativeArena = this.arena): KernelArgs {
    return new KernelArgs(arena, values)
  }

  /** Puts a kernel on the stream. `sharedBytes` is dynamic shared memory. Allocates nothing. Capturable. */
  launch(
    kernel: Kernel,
    grid: Dim3,
    block: Dim3,
    sharedBytes: number,
    args: KernelArgs,
    options?: LaunchOptions,
  ): void {
    this.enter()
    this.#launcher.launch(kernel, grid, block, sharedBytes, args, options)
  }

  /**
   * How many clusters of `count` blocks run at once: a cluster lies within one part of the chip, of 16 to 18
   * multiprocessors.
   */
  clustersAtOnce(kernel: Kernel, threads: number, sharedBytes: number, cluster: number): number {
    this.enter()
    return this.#launcher.clustersAtOnce(kernel, threads, sharedBytes, cluster)
  }

  /** Blocks of a kernel that fit on one multiprocessor at once. */
  blocksPerSm(kernel: Kernel, threads: number, sharedBytes: number): number {
    this.enter()
    this.#launcher.allowShared(kernel, sharedBytes)
    const out = new Int32Array(1)
    this.#driver.call('cuOccupancyMaxActiveBlocksPerMultiprocessor', out, kernel.handle, threads, sharedBytes)
    return out[0]!
  }

  /**
   * Captures as a graph what `record` puts on the stream; nothing of it runs now. Kernels and plans must exist before.
   */
  capture(record: () => void, label = 'unnamed'): CudaGraph {
    this.#enterEager('capture')
    this.#driver.call('cuStreamBeginCapture_v2', this.#stream, CAPTURE_THREAD_LOCAL)
    this.#isCapturing = true
    const out = new BigUint64Array(1)
    try {
      record()
    } catch (error) {
      this.#abandonCapture(out)
      throw error
    }
    this.#isCapturing = false
    this.#driver.call('cuStreamEndCapture', this.#stream, out)
    const forget = () => this.#graphs.delete(graph)
    const graph = new CudaGraph(this.#driver, this.#stream, out[0]!, label, forget)
    this.#graphs.add(graph)
    return graph
  }

  /** The failure that ended the recording is the one to report, so this one's own status is not looked at. */
  #abandonCapture(out: BigUint64Array): void {
    this.#isCapturing = false
    const { cuStreamEndCapture, cuGraphDestroy } = this.#driver.functions
    cuStreamEndCapture(this.#stream, out)
    if (out[0]) cuGraphDestroy(out[0])
  }

  /**
   * Median microseconds on the device of what `run` puts on the stream, after one run to warm up. `before` is put there
   * ahead of each run and not timed: it hides the launch of what follows, and can empty the cache.
   */
  time(run: () => void, repeats = 20, before: () => void = () => {}): number {
    this.#enterEager('time')
    run()
    const times = timeOnStream(this.#driver, this.#stream, run, repeats, before)
    return times[Math.floor(repeats / 2)]!
  }

  /** Waits until everything on both streams has run; errors of kernels surface here. */
  synchronize(): void {
    this.enter()
    for (const stream of [this.#stream, this.#copyStream]) {
      const status = this.#driver.functions.cuStreamSynchronize(stream)
      if (status !== 0) throw this.#driver.error(status, 'waiting for the device')
    }
  }

  /**
   * Copies host memory on another thread, and then calls back. The device is not given back before: memory that is
   * being copied from or to would go with it.
   */
  copyAside(to: Memory, from: Memory, bytes: number, done: (error: unknown) => void): void {
    this.#numAside++
    copyMemoryAside(to, from, bytes, (error) => {
      this.#numAside--
      done(error)
      if (this.#isLeaving && this.#numAside === 0) this.dispose()
    })
  }

  /** Has something destroyed with the device that lives as long. */
  atEnd(destroy: () => void): void {
    this.#atEnd.push(destroy)
  }

  /** Frees everything made from this device, its graphs and pinned buffers included. */
  dispose(): void {
    if (this.#isDisposed) return
    this.#isLeaving = this.#numAside > 0
    if (this.#isLeaving) return
    this.synchronize()
    for (const graph of this.#graphs) graph.dispose()
    for (const destroy of this.#atEnd) destroy()
    this.#staging.dispose()
    for (const buffer of this.#pinned) buffer.dispose()
    this.#kernels.dispose()
    this.memory.dispose()
    this.#driver.call('cuStreamDestroy_v2', this.#stream)
    this.#driver.call('cuStreamDestroy_v2', this.#copyStream)
    this.#driver.call('cuDevicePrimaryCtxRelease_v2', this.info.ordinal)
    this.arena.dispose()
    currentContext = null
    this.#isDisposed = true
  }

  #enterEager(what: string): void {
    this.enter()
    assert(!this.#isCapturing, `${what} while a graph is being captured`)
  }
}
