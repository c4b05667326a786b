/** What a device can do at best by this API: the rates that figures are held against. */
/// <reference types="@webgpu/types" />
import { openDevice } from './adapter.ts'
import { USAGE, WebgpuDevice } from './device.ts'

interface WebgpuSpeed {
  readonly bytesPerSecond: number
  /** f32; a multiply-add is two. */
  readonly operationsPerSecond: number
}

/** Beyond the caches of any GPU, where so much can be bound; a processor that plays one would take seconds for it. */
const READ_BYTES = 2 ** 29
const SOFTWARE_SHARE = 2 ** -5
/** Of a workgroup of speed-read.wgsl. */
const GROUP_BYTES = 2 ** 16
/** Keeps numbers of a float's bits finite. */
const NUMBER = 0xbfffffff
const GROUPS_IN_X = 1024
const ROUNDS = 64
/** Of a thread of speed-multiply.wgsl in a round: two vectors of four, sixteen times. */
const OPERATIONS_A_ROUND = 2 * 4 * 2 * 16
const MULTIPLY_GROUPS = 1024
/** A run takes so long at least; the best of some counts. */
const LEAST_MILLISECONDS = 40
const RUNS = 4

export async function measureWebgpu(index: number): Promise<WebgpuSpeed> {
  const device = new WebgpuDevice(await openDevice(index))
  try {
    const share = device.isSoftware ? SOFTWARE_SHARE : 1
    const bytes = Math.min(share * READ_BYTES, 2 ** Math.floor(Math.log2(device.maxBinding)))
    const values = device.buffer(bytes, USAGE.storage | USAGE.copyDst)
    const access = ['write', 'read'] as const
    const out = device.buffer(16, USAGE.storage)
    // Some devices hold zeros compressed, which read faster.
    const block = Uint32Array.from({ length: 2 ** 18 }, (_, i) => Math.imul(i + 1, 0x9e3779b1) & NUMBER)
    for (let at = 0; at < bytes; at += block.byteLength) device.write(values, at, block)
    const bindings = device.bindGroup(access, [out, values])
    const run = (file: string, constants: Readonly<Record<string, number>>, x: number, y: number) => {
      const pipeline = device.kernel(file, [access], { constants }).pipeline
      return (times: number) => {
        const pass = device.encoder.beginComputePass()
        pass.setPipeline(pipeline)
        pass.setBindGroup(0, bindings)
        for (let i = 0; i < times; i++) pass.dispatchWorkgroups(x, y)
        pass.end()
        device.flush()
        return device.gpu.queue.onSubmittedWorkDone()
      }
    }
    const groups = bytes / GROUP_BYTES
    const x = Math.min(groups, GROUPS_IN_X)
    const read = await secondsOf(run('speed-read', { READS: 16 }, x, groups / x))
    const multiplyGroups = share * MULTIPLY_GROUPS
    const multiply = await secondsOf(run('speed-multiply', { ROUNDS, SIXTEEN: 16 }, multiplyGroups, 1))
    device.check()
    return {
      bytesPerSecond: bytes / read,
      operationsPerSecond: (256 * multiplyGroups * ROUNDS * OPERATIONS_A_ROUND) / multiply,
    }
  } finally {
    device.dispose()
  }
}

/** Of one time, in runs of as many as take long enough that sending them does not count. */
async function secondsOf(run: (times: number) => Promise<unknown>): Promise<number> {
  let times = 1
  let best = Number.POSITIVE_INFINITY
  for (let done = 0; done < RUNS; ) {
    const start = performance.now()
    await run(times)
    const milliseconds = performance.now() - start
    if (milliseconds < LEAST_MILLISECONDS) {
      times *= 2
      continue
    }
    done++
    best = Math.min(best, milliseconds / 1000 / times)
  }
  return best
}
