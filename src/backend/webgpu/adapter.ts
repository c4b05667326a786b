/**
 * Which adapters there are, and one of them opened: in a page those of the browser, in Node those of the optional package
 * `webgpu` (Dawn: Vulkan, Metal or D3D12). Knows nothing of what runs on a device.
 */
/// <reference types="@webgpu/types" />
import { SkeinError } from '../../errors.ts'

export interface OpenedDevice {
  readonly adapter: GPUAdapter
  readonly device: GPUDevice
}

interface AdapterReport {
  /** "NVIDIA H200 (Vulkan driver 570)" */
  readonly name: string
  readonly vendor: string
  /** A processor that draws: right, and slow. */
  readonly isSoftware: boolean
  readonly features: readonly string[]
  readonly maxBindingBytes: number
}

export interface WebgpuReport {
  /** In the order of `webgpu:N`. */
  readonly adapters: readonly AdapterReport[]
  /** Why there are none, and what to do; null when there are. */
  readonly problem: string | null
}

/** Name of the npm package: a variable, so that nothing needs it at build time. */
const PACKAGE = 'webgpu'
/** What it takes to compile the kernels of ours that are measured; wider ones are refused by a driver later than here. */
const WANTED_FEATURES: readonly GPUFeatureName[] = ['shader-f16', 'subgroups', 'timestamp-query']
const WANTED_LIMITS = [
  'maxStorageBufferBindingSize',
  'maxBufferSize',
  'maxStorageBuffersPerShaderStage',
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupSizeX',
  'maxComputeWorkgroupStorageSize',
] as const

/**
 * Dawn's objects must outlive every use of theirs: once one of these three is collected, Node crashes. So they are kept
 * where no collector comes.
 */
const KEPT = Symbol.for('skein.webgpu')

function keep(thing: unknown): void {
  // A symbol of ours on the global object: nobody else declares what is under it.
  const holder = globalThis as unknown as Record<symbol, unknown[] | undefined>
  holder[KEPT] ??= []
  holder[KEPT].push(thing)
}

let known: Promise<GPU> | null = null

/** The browser's, or that of the package; made once. */
function openGpu(): Promise<GPU> {
  known ??= findGpu()
  return known
}

async function findGpu(): Promise<GPU> {
  // Node 20 has no navigator, later ones have one without gpu.
  const own = (globalThis as { navigator?: { gpu?: GPU } }).navigator?.gpu
  if (own) return own
  try {
    // The package's two exports; see its types.d.ts.
    const { create } = (await import(PACKAGE)) as { create(options: string[]): GPU }
    const gpu = create([])
    keep(gpu)
    return gpu
  } catch (error) {
    throw unavailable('the package webgpu is not installed; "npm install webgpu" adds it', error)
  }
}

function unavailable(message: string, cause?: unknown): SkeinError {
  return new SkeinError('backend_unavailable', message, { cause })
}

const NO_ADAPTER =
  'no WebGPU adapter: on Linux install libvulkan1 and the Vulkan driver of the GPU (mesa-vulkan-drivers for AMD and Intel)'

/** One adapter for each kind of choice that the API offers: it cannot list them all. */
async function listAdapters(): Promise<GPUAdapter[]> {
  const gpu = await openGpu()
  const found: GPUAdapter[] = []
  const requests: GPURequestAdapterOptions[] = [
    { powerPreference: 'high-performance' },
    { powerPreference: 'low-power' },
  ]
  for (const request of requests) {
    const adapter = await gpu.requestAdapter(request)
    if (!adapter || found.some((other) => nameOf(other) === nameOf(adapter))) continue
    keep(adapter)
    found.push(adapter)
  }
  return found
}

export async function webgpuReport(): Promise<WebgpuReport> {
  try {
    const adapters = (await listAdapters()).map(describeAdapter)
    return { adapters, problem: adapters.length === 0 ? NO_ADAPTER : null }
  } catch (error) {
    return { adapters: [], problem: SkeinError.from(error).message }
  }
}

export function describeAdapter(adapter: GPUAdapter): AdapterReport {
  return {
    name: nameOf(adapter),
    vendor: adapter.info.vendor,
    isSoftware: isSoftware(adapter),
    features: [...adapter.features].filter((name) => WANTED_FEATURES.some((f) => f === name)),
    maxBindingBytes: adapter.limits.maxStorageBufferBindingSize,
  }
}

function nameOf({ info }: GPUAdapter): string {
  const name = info.device || info.architecture || info.vendor || 'unnamed GPU'
  return info.description ? `${name} (${info.description})` : name
}

function isSoftware({ info }: GPUAdapter): boolean {
  return (
    info.isFallbackAdapter ||
    /swiftshader|llvmpipe|lavapipe|warp|basic render/i.test(
      `${info.architecture} ${info.device} ${info.description}`,
    )
  )
}

/** A device with all that its adapter offers of what kernels choose by. */
export async function openDevice(index: number): Promise<OpenedDevice> {
  const adapters = await listAdapters()
  const adapter = adapters[index]
  if (!adapter)
    throw unavailable(
      adapters.length === 0
        ? NO_ADAPTER
        : `--device webgpu:${index}: there are ${adapters.length} adapters, counted from 0`,
    )
  const device = await adapter.requestDevice({
    requiredFeatures: WANTED_FEATURES.filter((name) => adapter.features.has(name)),
    requiredLimits: Object.fromEntries(WANTED_LIMITS.map((name) => [name, adapter.limits[name]])),
  })
  keep(device)
  return { adapter, device }
}
