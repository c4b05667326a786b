/**
 * Which adapters there are, and one of them opened: in a page those of the browser, in Node those of the optional package
 * `webgpu` (Dawn: Vulkan, Metal or D3D12). Knows nothing of what runs on a device.
 */
/// <reference types="@webgpu/types" />
import { SkeinError } from '../../errors.ts'

export interface OpenedDevice {
  readonly adapter: GPUAdapter
  readonly device: GPUDevice
  /** Of WGSL. */
  readonly language: ReadonlySet<string>
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
/**
 * What Dawn offers only to who asks: matrices of a subgroup, an experiment that has no standard yet, and f16 on NVIDIA by
 * Vulkan. The self-test (self-test.ts) judges what they compute.
 */
const DAWN_OPTIONS = ['enable-dawn-features=allow_unsafe_apis,vulkan_enable_f16_on_nvidia']
const SUBGROUP_MATRICES = 'chromium-experimental-subgroup-matrix'
/** A kernel may say how many threads its subgroups have: GPUs of AMD run them with 32 or 64. */
const SUBGROUP_SIZES = 'subgroup-size-control'
/** What kernels choose by. */
const WANTED_FEATURES: readonly string[] = [
  'shader-f16',
  'subgroups',
  SUBGROUP_SIZES,
  SUBGROUP_MATRICES,
  'timestamp-query',
]
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
    const gpu = create(DAWN_OPTIONS)
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
    /swiftshader|llvmpipe|lavapipe|warp|basic render/i.test(`${info.architecture} ${info.device} ${info.description}`)
  )
}

/** Whether kernels can use subgroups: to tell them apart came to WGSL later than they. */
export function hasSubgroups({ device, language }: OpenedDevice): boolean {
  return device.features.has('subgroups') && language.has('subgroup_id')
}

/** Whose GPUs multiply four bytes by four in one instruction; Dawn writes such products out where there is none, as on Apple's. */
const VENDORS_WITH_DOTS: readonly string[] = ['nvidia', 'amd', 'intel']

export function hasDots({ adapter, language }: OpenedDevice): boolean {
  return language.has('packed_4x8_integer_dot_product') && VENDORS_WITH_DOTS.includes(adapter.info.vendor)
}

/** Shared memory of linear-matrix.wgsl, its subgroups, and threads that each side of a matrix has weights for. */
const MATRIX_SHARED = 32_768
const MATRIX_SUBGROUPS = 8
const LANES_OF_SIDE = 4

/** What an adapter says of its matrices; not in the types, as no standard has it. */
interface MatrixConfig {
  readonly componentType: string
  readonly resultComponentType: string
  readonly M: number
  readonly N: number
  readonly K: number
}

/** Matrices of `side` rows and columns, whose products of f16 a subgroup of `lanes` threads sums in f32. */
export interface Matrices {
  readonly side: number
  readonly lanes: number
  /** Whether kernels have to say so, because subgroups may have more. */
  readonly isSized: boolean
  /** Of a workgroup. */
  readonly sharedBytes: number
}

/** The largest that there are; null where a device has none, or cannot say how many threads a subgroup has. */
export function matricesOf(opened: OpenedDevice): Matrices | null {
  const { adapter, device } = opened
  const needed = ['shader-f16', SUBGROUP_MATRICES]
  if (!hasSubgroups(opened) || !needed.every((name) => device.features.has(name))) return null
  const { maxComputeWorkgroupStorageSize: sharedBytes, maxComputeInvocationsPerWorkgroup: threads } = device.limits
  if (sharedBytes < MATRIX_SHARED) return null
  const { subgroupMinSize, subgroupMaxSize, subgroupMatrixConfigs } = adapter.info as GPUAdapterInfo & {
    readonly subgroupMatrixConfigs?: readonly MatrixConfig[]
  }
  const lanes = subgroupMinSize
  const isSized = lanes !== subgroupMaxSize
  if ((isSized && !device.features.has(SUBGROUP_SIZES)) || MATRIX_SUBGROUPS * lanes > threads) return null
  const sides = [...(subgroupMatrixConfigs ?? [])]
    .filter((one) => one.componentType === 'f16' && one.resultComponentType === 'f32')
    .filter(({ M, N, K }) => M === N && N === K && (M === 8 || M === 16))
    .map(({ M }) => M)
    .filter((side) => lanes <= LANES_OF_SIDE * side)
  return sides.length > 0 ? { side: Math.max(...sides), lanes, isSized, sharedBytes } : null
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
  const { subgroupMinSize, subgroupMaxSize } = adapter.info
  const isOfUse = (name: string) =>
    adapter.features.has(name) && (name !== SUBGROUP_SIZES || subgroupMinSize !== subgroupMaxSize)
  const device = await adapter.requestDevice({
    // The experimental one is not in the types.
    requiredFeatures: WANTED_FEATURES.filter(isOfUse) as GPUFeatureName[],
    requiredLimits: Object.fromEntries(WANTED_LIMITS.map((name) => [name, adapter.limits[name]])),
  })
  keep(device)
  return { adapter, device, language: (await openGpu()).wgslLanguageFeatures }
}
