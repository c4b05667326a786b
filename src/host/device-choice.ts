/**
 * Chooses the backend of a model: the one of --device, or the best of this machine. Only this file opens backends for
 * models. It does not know how a model is loaded.
 */
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { freemem } from 'node:os'
import type { Backend } from '../backend/backend.ts'
import { createCpuBackend, nativeScores } from '../backend/cpu/cpu.ts'
import { cpuReport } from '../backend/cpu/isa.ts'
import { CpuQuantiser } from '../backend/cpu/quantise.ts'
import { type CudaBackend, createCudaBackend } from '../backend/cuda/cuda.ts'
import { CudaDevice } from '../backend/cuda/device/device.ts'
import { isCapable } from '../backend/cuda/driver/device-info.ts'
import { kindOf } from '../backend/cuda/kinds/kinds.ts'
import { cudaReport, hasUsableCuda } from '../backend/cuda/report.ts'
import { createReferenceBackend } from '../backend/reference/reference.ts'
import { webgpuReport } from '../backend/webgpu/adapter.ts'
import type { Quantise } from '../backend/webgpu/resources.ts'
import { type Tested, testBackend } from '../backend/webgpu/self-test.ts'
import { openWebgpuBackend, type WebgpuBackend, type WebgpuOptions } from '../backend/webgpu/webgpu.ts'
import { assert, SkeinError } from '../errors.ts'
import type { FreeMemory } from './batch-size.ts'

/**
 * `cuda:` takes the driver's index or a UUID; plain `cuda` is the first usable GPU. `webgpu:` takes the index of an
 * adapter as "skein doctor" lists them.
 */
export type DeviceChoice = 'auto' | 'cpu' | 'reference' | 'cuda' | `cuda:${string}` | 'webgpu' | `webgpu:${number}`

/** Values of --device, for error messages. */
export const DEVICES_TAKEN = 'auto, cpu, cuda, cuda:N, webgpu, webgpu:N or reference'
/** The same with a word for each, for help texts. */
export const DEVICES_HELP =
  'auto (default), cpu, cuda, cuda:N (or cuda:UUID), webgpu or webgpu:N (any GPU), or reference (plain float64, for checking)'

/** Format of the WKV states on a GPU; fp16 halves their memory and traffic, and rounds with dither. */
type WkvChoice = 'fp32' | 'fp16'
export const WKV_CHOICES: readonly WkvChoice[] = ['fp32', 'fp16']

export interface BackendOptions {
  readonly device?: DeviceChoice | undefined
  readonly threads?: number | undefined
  readonly wkv?: WkvChoice | undefined
  /** Maximum memory to use on a GPU; absent: all that is free. */
  readonly memoryBytes?: number | undefined
}

/** Model facts that the choice may depend on. */
interface ModelFacts {
  readonly numParameters: number
}

export interface OpenedBackend {
  readonly backend: Backend
  /** Memory that is now free for states and activations. */
  freeMemory(): FreeMemory
  /**
   * Starts compiling the missing kernels of a model that `build` makes on a backend that runs nothing. Returns their
   * number. Absent if nothing is compiled.
   */
  compileAhead?(build: (absent: OpenedBackend) => void): number
  /** Tunes that model's products when its weights are there, beside the compilation; `onBegin` hears how many, if any. */
  tuneAhead?(build: (absent: OpenedBackend) => void, onBegin: (numProducts: number) => void): void
}

/** GPU memory that is assumed if the system does not report any. */
const MOST_WEBGPU_BYTES = 8 * 2 ** 30

/** The reference backend reads ~10⁸ weights per second: beyond this size a token takes seconds. */
const MAX_REFERENCE_PARAMETERS = 50_000_000

/** Parses a value of the flag; undefined if it is not valid. */
export function parseDevice(text: string): DeviceChoice | undefined {
  if (text === 'auto' || text === 'cpu' || text === 'reference' || text === 'webgpu') return text
  const adapter = /^webgpu:(\d+)$/.exec(text)?.[1]
  if (adapter !== undefined) return `webgpu:${Number(adapter)}`
  const [, name = '', which] = /^([a-z]+)(?::(\d+|GPU-[0-9a-f-]+))?$/i.exec(text) ?? []
  const kind = kindOf(name.toLowerCase())
  if (kind === null) return undefined
  // Other kinds of driver than CUDA's go the same way: openBackend asks for the kind by this name.
  return (which === undefined ? kind.name : `${kind.name}:${which}`) as DeviceChoice
}

/** What says, without asking a driver, whether WebGPU may find a GPU. */
interface Machine {
  readonly platform: string
  hasFile(path: string): boolean
  hasPackage(name: string): boolean
}

const HERE: Machine = {
  platform: process.platform,
  hasFile: existsSync,
  hasPackage(name) {
    try {
      createRequire(import.meta.url).resolve(name)
      return true
    } catch {
      return false
    }
  },
}

/** Of GPUs on Linux: the kernel's own drivers, NVIDIA's, which is all that a container may have, and that of Windows' subsystem. */
const GPU_FILES = ['/dev/dri', '/dev/nvidiactl', '/dev/dxg']

/** Whether there may be a GPU. */
function hasGraphics({ platform, hasFile }: Machine): boolean {
  return platform !== 'linux' || GPU_FILES.some(hasFile)
}

/**
 * Devices that a server offers for its workers, on a machine whose NVIDIA GPUs have these indices. Drivers are not asked
 * for adapters, which takes long and can end the process: a worker that finds none says so.
 */
export function devicesOf(cards: readonly number[], machine = HERE): string[] {
  const mayHaveGpu = cards.length > 0 || hasGraphics(machine)
  const webgpu = mayHaveGpu && machine.hasPackage('webgpu') ? ['webgpu'] : []
  return ['cpu', ...cards.map((index) => `cuda:${index}`), ...webgpu]
}

/** Backends opened in advance, by adapter index, because opening one is asynchronous. */
const prepared = new Map<number, WebgpuBackend>()

/** Prepares what openBackend needs for this choice. `testedOf` says which model it is for, where a device is tested. */
export async function prepareDevice(options: BackendOptions, testedOf?: () => Tested): Promise<void> {
  const { device = 'auto', wkv } = options
  if (device === 'auto') return prepareBest(options, testedOf)
  if (!isWebgpu(device)) return
  const index = adapterOf(device)
  prepared.set(index, await openTested(index, { quantise: quantiseByCpu(), wkv: wkvType(wkv) }, testedOf?.()))
}

/** Where matrix units compute wrong answers or their kernels do not compile, the device does without them. */
async function openTested(index: number, options: WebgpuOptions, tested?: Tested): Promise<WebgpuBackend> {
  const backend = await openWebgpuBackend(index, options)
  try {
    await testBackend(backend, tested)
    return backend
  } catch (error) {
    backend.dispose()
    if (backend.device.matrices === null) throw error
    note(`with matrix units ${SkeinError.from(error).message}; trying without them`)
    return openTested(index, { ...options, without: ['matrices'] }, tested)
  }
}

/** The adapter that a choice opens, once prepared; null for other devices. */
export function adapterChosen({ device = 'auto' }: BackendOptions): number | null {
  if (device === 'auto') return prepared.keys().next().value ?? null
  return isWebgpu(device) ? adapterOf(device) : null
}

/** Quantises with the CPU kernels: the same bytes, about a hundred times faster. Undefined if they are not built. */
function quantiseByCpu(): Quantise | undefined {
  if (cpuReport().problem !== null) return undefined
  let quantiser: CpuQuantiser | null = null
  return (...rows) => {
    quantiser ??= new CpuQuantiser()
    return quantiser.quantise(...rows)
  }
}

/**
 * Computes log-probabilities with the CPU kernels, for every device but the reference. Undefined where they cannot be had:
 * the plain way gives the same, more slowly.
 */
export function scoresOf({ device }: BackendOptions) {
  if (device === 'reference' || cpuReport().problem !== null) return undefined
  try {
    return nativeScores()
  } catch {
    // Built from other sources, which only a model on the CPU has to refuse.
    return undefined
  }
}

/** Prepares a GPU that cuda cannot use. Software adapters are slower than the CPU kernels. */
async function prepareBest(options: BackendOptions, testedOf?: () => Tested): Promise<void> {
  if (hasUsableCuda()) return
  // Nothing needs to be loaded.
  if (!hasGraphics(HERE)) return
  const { adapters } = await webgpuReport()
  const index = adapters.findIndex(({ isSoftware }) => !isSoftware)
  if (index < 0) return
  try {
    await prepareDevice({ ...options, device: `webgpu:${index}` }, testedOf)
  } catch (error) {
    note(`${SkeinError.from(error).message}; using the CPU`)
  }
}

function isWebgpu(device: DeviceChoice): device is 'webgpu' | `webgpu:${number}` {
  return device === 'webgpu' || device.startsWith('webgpu:')
}

function adapterOf(device: 'webgpu' | `webgpu:${number}`): number {
  return device === 'webgpu' ? 0 : Number(device.slice('webgpu:'.length))
}

function openPrepared(index: number): OpenedBackend {
  const backend = prepared.get(index)
  assert(backend !== undefined, 'an adapter was prepared before a model was loaded')
  prepared.delete(index)
  // WebGPU does not report memory; an integrated GPU shares that of the host.
  const bytes = () => Math.min(freemem(), MOST_WEBGPU_BYTES)
  const { maxBinding } = backend.device
  const bound = () => ({ bytes: maxBinding, usedBytes: backend.device.arenaBytes })
  return { backend, freeMemory: () => ({ bytes: bytes(), isDevice: false, bound: bound() }) }
}

export function openBackend(options: BackendOptions, model: ModelFacts): OpenedBackend {
  const { device = 'auto' } = options
  if (device === 'auto') return openBest(options, model)
  if (kindOf(device) !== null) return openCuda(device, options)
  refuseMemory(options, `needs --device cuda, not ${device}`)
  if (isWebgpu(device)) return openPrepared(adapterOf(device))
  refuseHalfStates(options, `needs --device cuda or webgpu, not ${device}`)
  return onHost(device === 'reference' ? createReferenceBackend() : openCpu(options))
}

/**
 * A usable GPU, by cuda or else webgpu; else the CPU kernels if they are built; else the reference, for small models.
 */
function openBest(options: BackendOptions, model: ModelFacts): OpenedBackend {
  const cuda = openCudaIfUsable(options)
  if (cuda !== null) return cuda
  refuseMemory(options, 'needs an NVIDIA GPU, and none is usable here')
  for (const index of prepared.keys()) return openPrepared(index)
  refuseHalfStates(options, 'needs a GPU, and none is usable here')
  try {
    return onHost(openCpu(options))
  } catch (error) {
    return onHost(referenceInstead(error, model))
  }
}

function openCudaIfUsable(options: BackendOptions): OpenedBackend | null {
  const { hasCard, problems } = cudaReport()
  if (!hasCard) return null
  if (problems.length > 0) {
    note(`${problems.map(({ message }) => message).join('; ')}; using ${prepared.size > 0 ? 'WebGPU' : 'the CPU'}`)
    return null
  }
  return openCuda('cuda', options)
}

/** Options that a device cannot support are refused, not ignored. Only cuda reports its memory. */
function refuseMemory({ memoryBytes }: BackendOptions, reason: string): void {
  if (memoryBytes === undefined) return
  throw new SkeinError('invalid_request', `--memory-gb ${reason}`, { param: 'memory-gb' })
}

function refuseHalfStates({ wkv }: BackendOptions, reason: string): void {
  if (wkv !== 'fp16') return
  throw new SkeinError('invalid_request', `--wkv fp16 ${reason}`, { param: 'wkv' })
}

function wkvType(wkv: WkvChoice = 'fp32') {
  return wkv === 'fp16' ? ('f16' as const) : ('f32' as const)
}

function openCuda(device: string, { wkv, memoryBytes }: Pick<BackendOptions, 'wkv' | 'memoryBytes'>): OpenedBackend {
  const kind = kindOf(device)
  const backend = createCudaBackend({
    ...(kind === null ? {} : { kind }),
    device: ordinalOrUuid(device),
    wkv: wkvType(wkv),
    ...(memoryBytes === undefined ? {} : { memoryBytes }),
  })
  type Build = (absent: OpenedBackend) => void
  const onAbsent = (build: Build) => (absent: CudaBackend) => build(onCuda(absent))
  return {
    ...onCuda(backend),
    compileAhead: (build) => backend.compileAhead(onAbsent(build)),
    tuneAhead: (build, onBegin) => backend.tuneAhead(onAbsent(build), onBegin),
  }
}

function onCuda(backend: CudaBackend): OpenedBackend {
  const freeMemory = () => ({
    bytes: backend.device.freeBytes(),
    isDevice: true,
    scratchBytes: backend.scratchBytes,
    logBytes: backend.logBytes,
  })
  return { backend, freeMemory }
}

/** The device alone, to measure it. */
export function openCudaDevice(device: DeviceChoice): CudaDevice {
  const kind = kindOf(device)
  if (kind === null)
    throw new SkeinError('invalid_request', `--device takes cuda, cuda:N or cuda:UUID, not ${device}`, {
      param: 'device',
    })
  return CudaDevice.open({ kind, device: ordinalOrUuid(device) })
}

/** "cuda" means the first usable GPU, because a machine may also hold an old one. */
function ordinalOrUuid(device: string): number | string {
  if (device === 'cuda') return cudaReport().devices.find(isCapable)?.ordinal ?? 0
  const which = device.split(':')[1] ?? '0'
  return /^\d+$/.test(which) ? Number(which) : which
}

function openCpu({ threads }: BackendOptions): Backend {
  return createCpuBackend(threads === undefined ? {} : { threads })
}

function onHost(backend: Backend): OpenedBackend {
  return { backend, freeMemory: () => ({ bytes: freemem(), isDevice: false }) }
}

function referenceInstead(error: unknown, { numParameters }: ModelFacts): Backend {
  if (!(error instanceof SkeinError) || error.code !== 'backend_unavailable') throw error
  if (numParameters > MAX_REFERENCE_PARAMETERS)
    throw new SkeinError(
      'backend_unavailable',
      `${error.message}; the reference backend is too slow for ${Math.round(numParameters / 1e6)}M parameters (--device reference runs it anyway)`,
    )
  note(`${error.message}; using the slow reference backend`)
  return createReferenceBackend()
}

function note(text: string): void {
  process.stderr.write(`skein: ${text}\n`)
}
