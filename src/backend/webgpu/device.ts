/**
 * One WebGPU device: its buffers, pipelines and queue. Commands given between two submits go together. Tensors of all
 * kinds live in one buffer, the arena, so that a kernel needs few bindings; it grows by moving. Knows no ops.
 */
/// <reference types="@webgpu/types" />
import { assert, SkeinError } from '../../errors.ts'
import { describeAdapter, hasDots, hasSubgroups, type Matrices, matricesOf, type OpenedDevice } from './adapter.ts'
import { type Constants, Kernel, readSource } from './source.ts'

/** Values of GPUBufferUsage, which Node has no global for. */
export const USAGE = { mapRead: 1, copySrc: 4, copyDst: 8, uniform: 64, storage: 128 } as const
/** Values of GPUShaderStage and GPUMapMode. */
const COMPUTE = 4
const MAP_READ = 1

/** Threads of a workgroup where a kernel does not say otherwise. A processor switches between them at every barrier. */
const WORKGROUP = 256
const SOFTWARE_WORKGROUP = 64
const FIRST_ARENA_BYTES = 1 << 20
/** Buffers have multiples of so many bytes. */
const BUFFER_UNIT = 16
/** Tensors begin at multiples of so many numbers: vectors of four never straddle. */
const TENSOR_UNIT = 16

/**
 * Results come by way of staging buffers, which wait for the next read: to make one holds the event loop up for hundreds of
 * milliseconds where the device is busy. All small ones have one size. So many of each kind are kept.
 */
const SMALL_STAGING_BYTES = 1 << 20
const MOST_SMALL_STAGING = 32
const MOST_LARGE_STAGING = 8

const DIRECTIVES = /^(?:enable|diagnostic)\b.*;$/gm

export interface KernelVariant {
  readonly constants?: Constants
  /** Files that `#include NAME` stands for. */
  readonly files?: Readonly<Record<string, string>>
}

/** What kernels make use of where a device has it; `software`: the forms that a processor in the GPU's place gets. */
export type Feature = 'subgroups' | 'matrices' | 'dots' | 'software'

export type Access = 'read' | 'write' | 'uniform'

export class WebgpuDevice {
  readonly gpu: GPUDevice
  readonly name: string
  readonly maxBinding: number
  readonly threads: number
  readonly isSoftware: boolean
  /** Whether kernels may add up by subgroups. */
  readonly hasSubgroups: boolean
  /** Of a subgroup, at least. */
  readonly lanes: number
  /** What subgroups multiply; null where products do without. */
  readonly matrices: Matrices | null
  /** Whether integer weights of few tokens are multiplied as bytes. Only where many tokens have other bits anyway. */
  readonly dots: boolean
  /** Tensors, by their start, that some steps leave as they are, because nobody reads them there. */
  readonly unwritten = new Set<number>()
  /** Resolves when the device is gone, with the reason. */
  readonly lost: Promise<string>
  #arena: GPUBuffer
  #arenaEnd = 0
  #arenaMoves = 0
  #encoder: GPUCommandEncoder | null = null
  #failure: SkeinError | null = null
  #isDisposed = false
  #bytes = 0
  readonly #buffers = new Set<GPUBuffer>()
  /** The smallest first. */
  #staging: GPUBuffer[] = []
  readonly #kernels = new Map<string, Kernel>()
  readonly #layouts = new Map<string, GPUBindGroupLayout>()

  constructor(opened: OpenedDevice, without: readonly Feature[] = []) {
    const { adapter, device } = opened
    const { name, isSoftware: isProcessor } = describeAdapter(adapter)
    const isSoftware = isProcessor && !without.includes('software')
    this.gpu = device
    this.name = name
    this.isSoftware = isSoftware
    this.hasSubgroups = hasSubgroups(opened) && !without.includes('subgroups')
    this.lanes = opened.adapter.info.subgroupMinSize ?? 1
    this.matrices = without.includes('matrices') ? null : matricesOf(opened)
    this.dots = this.matrices !== null && hasDots(opened) && !without.includes('dots')
    const { limits } = device
    // Many GPUs say 2 ** 31 - 4; buffers are whole units.
    this.maxBinding =
      BUFFER_UNIT * Math.floor(Math.min(limits.maxStorageBufferBindingSize, limits.maxBufferSize) / BUFFER_UNIT)
    this.threads = Math.min(
      isSoftware ? SOFTWARE_WORKGROUP : WORKGROUP,
      limits.maxComputeInvocationsPerWorkgroup,
      limits.maxComputeWorkgroupSizeX,
    )
    assert(adapter.limits.maxStorageBuffersPerShaderStage >= 5, 'five storage buffers in a kernel')
    device.addEventListener('uncapturederror', this.#onError)
    this.lost = device.lost.then(({ reason, message }) => {
      const why = message || reason
      if (!this.#isDisposed) this.#failure ??= new SkeinError('kernel_failed', `the GPU was lost: ${why}`)
      return why
    })
    this.#arena = this.#firstArena()
  }

  #firstArena(): GPUBuffer {
    return this.buffer(FIRST_ARENA_BYTES, USAGE.storage | USAGE.copySrc | USAGE.copyDst)
  }

  readonly #onError = ({ error }: GPUUncapturedErrorEvent): void => this.#fail(error)

  #fail(error: GPUError): void {
    const isMemory = error.constructor.name === 'GPUOutOfMemoryError'
    this.#failure ??= new SkeinError(isMemory ? 'out_of_memory' : 'kernel_failed', `${this.name}: ${error.message}`)
  }

  /** Errors of the device come late; they surface at the next look. */
  check(): void {
    if (this.#isDisposed) throw new SkeinError('internal', 'a webgpu backend used after dispose()')
    if (this.#failure) throw this.#failure
  }

  /** Bytes of all buffers. */
  get bytes(): number {
    return this.#bytes
  }

  buffer(bytes: number, usage: number): GPUBuffer {
    const size = Math.max(1, Math.ceil(bytes / BUFFER_UNIT)) * BUFFER_UNIT
    // What kernels read is bound whole.
    const most = usage & USAGE.storage ? this.maxBinding : this.gpu.limits.maxBufferSize
    if (size > most)
      throw new SkeinError(
        'out_of_memory',
        `a buffer of ${size} bytes, where ${this.name} has ${most} at most; use fewer --slots or --step-tokens`,
      )
    const buffer = this.gpu.createBuffer({ size, usage })
    this.#bytes += size
    this.#buffers.add(buffer)
    return buffer
  }

  free(buffer: GPUBuffer): void {
    if (!this.#buffers.delete(buffer)) return
    this.#bytes -= buffer.size
    buffer.destroy()
  }

  /** Gives back all buffers, whoever has them. Kernels stay. */
  reset(): void {
    this.flush()
    for (const buffer of this.#buffers) this.free(buffer)
    this.#staging = []
    this.unwritten.clear()
    this.#arena = this.#firstArena()
    this.#arenaEnd = 0
    this.#arenaMoves++
  }

  // The arena.

  /** Room for `count` numbers, zero; returns the index of the first. */
  allocate(count: number): number {
    this.check()
    const start = this.#arenaEnd
    const end = start + Math.ceil(count / TENSOR_UNIT) * TENSOR_UNIT
    if (4 * end > this.#arena.size) this.#growArena(4 * end)
    this.#arenaEnd = end
    return start
  }

  /** What tensors have of it. */
  get arenaBytes(): number {
    return 4 * this.#arenaEnd
  }

  get arena(): GPUBuffer {
    return this.#arena
  }

  /** Changes when the arena's buffer does: bindings to it are to be made anew. */
  get arenaMoves(): number {
    return this.#arenaMoves
  }

  #growArena(bytes: number): void {
    if (bytes > this.maxBinding)
      throw new SkeinError(
        'out_of_memory',
        `buffers of ${bytes} bytes, where ${this.name} binds ${this.maxBinding} at most; use fewer --step-tokens or --slots`,
      )
    const size = Math.min(this.maxBinding, Math.max(bytes, 2 * this.#arena.size))
    const larger = this.buffer(size, USAGE.storage | USAGE.copySrc | USAGE.copyDst)
    this.encoder.copyBufferToBuffer(this.#arena, 0, larger, 0, 4 * this.#arenaEnd)
    this.flush()
    this.free(this.#arena)
    this.#arena = larger
    this.#arenaMoves++
  }

  // The queue.

  /** Commands that go with the next submit. */
  get encoder(): GPUCommandEncoder {
    this.#encoder ??= this.gpu.createCommandEncoder()
    return this.#encoder
  }

  flush(): void {
    if (this.#encoder === null) return
    const commands = this.#encoder.finish()
    this.#encoder = null
    this.gpu.queue.submit([commands])
  }

  /** In order with everything else; the values may change when this returns. */
  write(buffer: GPUBuffer, offset: number, values: ArrayBufferView): void {
    this.check()
    this.flush()
    const { byteOffset, byteLength } = values
    // Views of this backend are over plain buffers, never shared ones.
    this.gpu.queue.writeBuffer(buffer, offset, values.buffer as ArrayBuffer, byteOffset, byteLength)
  }

  /** The bytes of some ranges, one after the other, as everything given so far leaves them. */
  async read(ranges: readonly (readonly [GPUBuffer, number, number])[]): Promise<ArrayBuffer> {
    this.check()
    const size = ranges.reduce((sum, [, , bytes]) => sum + bytes, 0)
    const staging = this.#stagingOf(size)
    let at = 0
    for (const [buffer, offset, bytes] of ranges) {
      this.encoder.copyBufferToBuffer(buffer, offset, staging, at, bytes)
      at += bytes
    }
    this.flush()
    try {
      return await this.mapped(staging, size)
    } finally {
      this.#keepStaging(staging)
    }
  }

  /** So many reads of so many bytes at once make no buffer. */
  reserveStaging(bytes: number, count: number): void {
    const size = Math.max(bytes, SMALL_STAGING_BYTES)
    const numThere = this.#staging.filter((one) => isSmall(one.size) === isSmall(size) && one.size >= size).length
    for (let i = numThere; i < count; i++) this.#keepStaging(this.buffer(size, USAGE.mapRead | USAGE.copyDst))
  }

  #stagingOf(bytes: number): GPUBuffer {
    const index = this.#staging.findIndex(({ size }) => size >= bytes && isSmall(size) === isSmall(bytes))
    if (index >= 0) return this.#staging.splice(index, 1)[0]!
    // The next, which may be a little larger, finds this one.
    const size = Math.max(SMALL_STAGING_BYTES, 2 ** Math.ceil(Math.log2(bytes)))
    return this.buffer(size, USAGE.mapRead | USAGE.copyDst)
  }

  #keepStaging(buffer: GPUBuffer): void {
    if (!this.#buffers.has(buffer)) return
    this.#staging.push(buffer)
    this.#staging.sort((a, b) => a.size - b.size)
    const most = isSmall(buffer.size) ? MOST_SMALL_STAGING : MOST_LARGE_STAGING
    const alike = this.#staging.filter(({ size }) => isSmall(size) === isSmall(buffer.size))
    if (alike.length <= most) return
    this.#staging.splice(this.#staging.indexOf(alike[0]!), 1)
    this.free(alike[0]!)
  }

  /** A copy of what a staging buffer holds when all before is done. */
  async mapped(staging: GPUBuffer, bytes: number): Promise<ArrayBuffer> {
    try {
      await staging.mapAsync(MAP_READ, 0, bytes)
    } catch (error) {
      await Promise.race([this.lost, Promise.resolve()])
      this.check()
      throw new SkeinError('kernel_failed', `${this.name}: a result cannot be read`, {
        cause: error,
      })
    }
    const copy = staging.getMappedRange(0, bytes).slice(0)
    staging.unmap()
    this.check()
    return copy
  }

  // Kernels.

  layout(access: readonly Access[]): GPUBindGroupLayout {
    const key = access.join()
    let layout = this.#layouts.get(key)
    if (layout === undefined) {
      const types = { read: 'read-only-storage', write: 'storage', uniform: 'uniform' } as const
      layout = this.gpu.createBindGroupLayout({
        entries: access.map((one, binding) => ({
          binding,
          visibility: COMPUTE,
          buffer: { type: types[one] },
        })),
      })
      this.#layouts.set(key, layout)
    }
    return layout
  }

  /** The kernel of a file, with the accesses of its bind groups. */
  kernel(
    file: string,
    groups: readonly (readonly Access[])[],
    { constants = {}, files = {} }: KernelVariant = {},
  ): Kernel {
    const key = JSON.stringify([file, groups, constants, files])
    let kernel = this.#kernels.get(key)
    if (kernel === undefined) {
      const values = { WG: this.threads, ...constants }
      const lines = Object.entries(values).map(([name, value]) => `const ${name} = ${value}u;`)
      const source = readSource(file, files, values)
      // Directives come first.
      const directives = source.match(DIRECTIVES) ?? []
      const code = [...directives, ...lines, source.replace(DIRECTIVES, '')].join('\n')
      // What a driver's message and a profile call it.
      const label = [file, ...Object.values(files), ...Object.values(constants)].join(' ')
      const module = this.gpu.createShaderModule({ label, code })
      const bindGroupLayouts = groups.map((access) => this.layout(access))
      const layout = this.gpu.createPipelineLayout({ bindGroupLayouts })
      kernel = new Kernel(this.gpu, { label, layout, compute: { module, entryPoint: 'main' } })
      this.#kernels.set(key, kernel)
    }
    return kernel
  }

  bindGroup(access: readonly Access[], buffers: readonly (GPUBuffer | GPUBufferBinding)[]): GPUBindGroup {
    return this.gpu.createBindGroup({
      layout: this.layout(access),
      entries: buffers.map((one, binding) => ({
        binding,
        resource: 'buffer' in one ? one : { buffer: one },
      })),
    })
  }

  dispose(): void {
    if (this.#isDisposed) return
    this.#isDisposed = true
    this.#encoder = null
    // Several may have one device, as in tests.
    this.gpu.removeEventListener('uncapturederror', this.#onError)
    this.gpu.destroy()
  }
}

function isSmall(bytes: number): boolean {
  return bytes <= SMALL_STAGING_BYTES
}
