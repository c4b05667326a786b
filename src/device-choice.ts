/**
 * Which backend runs a model: what --device says, or the best this machine has. The only place that opens a backend for a
 * model. Knows nothing of how a model is loaded onto it.
 */
import { freemem } from 'node:os'
import type { Backend } from './backend/backend.ts'
import { createCpuBackend } from './backend/cpu/cpu.ts'
import { createCudaBackend } from './backend/cuda/cuda.ts'
import { CudaDevice } from './backend/cuda/device.ts'
import { isCapable } from './backend/cuda/device-info.ts'
import { cudaReport } from './backend/cuda/report.ts'
import { createReferenceBackend } from './backend/reference/reference.ts'
import type { FreeMemory } from './batch-size.ts'
import { SkeinError } from './errors.ts'

/** `cuda:` takes an index as the driver counts or a UUID; bare `cuda` is the first GPU that can be used. */
export type DeviceChoice = 'auto' | 'cpu' | 'reference' | 'cuda' | `cuda:${string}`

/** How the WKV states are held on cuda; fp16 halves their memory and traffic, and rounds with dither. */
export type WkvChoice = 'fp32' | 'fp16'
export const WKV_CHOICES: readonly WkvChoice[] = ['fp32', 'fp16']

export interface BackendOptions {
  readonly device?: DeviceChoice | undefined
  readonly threads?: number | undefined
  readonly wkv?: WkvChoice | undefined
  /** Most memory of a GPU to use; all that is free when absent. */
  readonly memoryBytes?: number | undefined
}

/** What the choice may depend on. */
export interface ModelFacts {
  readonly numParameters: number
}

export interface OpenedBackend {
  readonly backend: Backend
  /** What is left now for states and activations. */
  freeMemory(): FreeMemory
}

/** The reference backend reads ~10⁸ weights a second: beyond this size a token takes seconds. */
const MAX_REFERENCE_PARAMETERS = 50_000_000

/** The choice that a flag's text means; undefined when it means none. */
export function parseDevice(text: string): DeviceChoice | undefined {
  if (text === 'auto' || text === 'cpu' || text === 'reference' || text === 'cuda') return text
  const which = /^cuda:(\d+|GPU-[0-9a-f-]+)$/i.exec(text)?.[1]
  return which === undefined ? undefined : `cuda:${which}`
}

export function openBackend(options: BackendOptions, model: ModelFacts): OpenedBackend {
  const { device = 'auto' } = options
  if (device === 'auto') return openBest(options, model)
  if (device === 'cuda' || device.startsWith('cuda:')) return openCuda(device, options)
  refuseCudaOptions(options, `needs --device cuda, not ${device}`)
  return onHost(device === 'reference' ? createReferenceBackend() : openCpu(options))
}

/** A usable GPU, else the CPU kernels where they are built, else the reference for models small enough for it. */
function openBest(options: BackendOptions, model: ModelFacts): OpenedBackend {
  const cuda = openCudaIfUsable(options)
  if (cuda !== null) return cuda
  refuseCudaOptions(options, 'needs a GPU, and none can be used here')
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
    note(`${problems.map(({ message }) => message).join('; ')}; using the CPU`)
    return null
  }
  return openCuda('cuda', options)
}

/** What only a GPU can do is refused elsewhere, not ignored. */
function refuseCudaOptions({ wkv, memoryBytes }: BackendOptions, reason: string): void {
  const refused = (flag: string, param: string) =>
    new SkeinError('invalid_request', `${flag} ${reason}`, { param })
  if (wkv === 'fp16') throw refused('--wkv fp16', 'wkv')
  if (memoryBytes !== undefined) throw refused('--memory-gb', 'memory-gb')
}

function openCuda(
  device: string,
  { wkv = 'fp32', memoryBytes }: Pick<BackendOptions, 'wkv' | 'memoryBytes'>,
): OpenedBackend {
  const backend = createCudaBackend({
    device: ordinalOrUuid(device),
    wkv: wkv === 'fp16' ? 'f16' : 'f32',
    ...(memoryBytes === undefined ? {} : { memoryBytes }),
  })
  const freeMemory = () => ({
    bytes: backend.device.freeBytes(),
    isDevice: true,
    scratchBytes: backend.scratchBytes,
  })
  return { backend, freeMemory }
}

/** The bare device of a choice, for what measures it. */
export function openCudaDevice(device: DeviceChoice): CudaDevice {
  if (device !== 'cuda' && !device.startsWith('cuda:'))
    throw new SkeinError(
      'invalid_request',
      `--device takes cuda, cuda:N or cuda:UUID, not ${device}`,
      {
        param: 'device',
      },
    )
  return CudaDevice.open({ device: ordinalOrUuid(device) })
}

/** "cuda" is the first GPU that can be used: a machine may hold an old one beside it. */
function ordinalOrUuid(device: string): number | string {
  if (device === 'cuda') return cudaReport().devices.find(isCapable)?.ordinal ?? 0
  const which = device.slice('cuda:'.length)
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
