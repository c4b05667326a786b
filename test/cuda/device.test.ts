import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import type { CudaDevice } from '../../src/backend/cuda/device/device.ts'
import { f32, i32 } from '../../src/backend/cuda/kernel/args.ts'
import { describeCuda, floatsOf, intsOf, openDevice, randomNumbers } from './kit.ts'

describeCuda('device', () => {
  let device: CudaDevice
  beforeAll(() => {
    device = openDevice()
  })
  afterAll(() => device.dispose())

  test('reports what it is, and is found by its UUID', () => {
    const { info } = device
    expect(info.numSms).toBeGreaterThan(0)
    expect(info.totalBytes).toBeGreaterThan(2 ** 30)
    expect(info.uuid).toMatch(/^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)
    const same = openDevice({ device: info.uuid })
    expect(same.info).toEqual(info)
    same.dispose()
    expect(() => openDevice({ device: 99 })).toThrow(/cuda:99 is not here; found: 0 = /)
  })

  test.each([1, 255, 4096, (17 << 20) + 3])('copies %i bytes there and back', (bytes) => {
    const values = Uint8Array.from({ length: bytes }, (_, i) => (i * 31 + (i >> 8)) & 255)
    const at = device.alloc(bytes + 16)
    device.fill(at, 0xee, bytes + 16)
    device.upload(at, values, 8)
    const back = device.download(at, bytes + 16)
    expect(Buffer.compare(back.subarray(8, bytes + 8), values)).toBe(0)
    expect([...back.subarray(0, 8), ...back.subarray(bytes + 8)]).toEqual(new Array(16).fill(0xee))
    device.free(at)
  })

  test('after an upload the source may be changed', () => {
    const values = new Float32Array(3_000_000).fill(1)
    const at = device.alloc(values.byteLength)
    device.upload(at, values)
    values.fill(2)
    expect(floatsOf(device.download(at, values.byteLength)).every((one) => one === 1)).toBe(true)
    device.free(at)
  })

  test.each([
    [100, 5],
    [3 << 20, 1],
  ])('%i bytes of memory shared by threads, from byte %i on', (bytes, from) => {
    const shared = new Uint8Array(new SharedArrayBuffer(4 << 20))
    const values = shared.subarray(from, from + bytes)
    const at = device.alloc(bytes)
    for (const salt of [1, 2]) {
      for (let i = 0; i < bytes; i++) values[i] = (i * 31 + (i >> 8) + salt) & 255
      const expected = values.slice()
      device.upload(at, values)
      values.fill(0)
      expect(Buffer.compare(device.download(at, bytes), expected)).toBe(0)
    }
    device.free(at)
  })

  test('copies through page-locked memory', () => {
    const [out, back] = [device.pinned(4096), device.pinned(4096)]
    new Float32Array(out.buffer).set(randomNumbers(1024))
    const [a, b] = [device.alloc(4096), device.alloc(4096)]
    device.uploadAsync(a, out, 4096)
    device.copy(b, a, 4096)
    device.downloadAsync(back, b, 4096)
    device.synchronize()
    expect(new Float32Array(back.buffer)).toEqual(randomNumbers(1024))
    device.free(a)
    device.free(b)
  })

  test('counts memory, and refuses what does not fit with the numbers', () => {
    const before = device.memory.takenBytes
    const pointers = Array.from({ length: 100 }, (_, i) => device.alloc(1 + 1000 * i))
    for (const pointer of pointers) expect(pointer % 256n).toBe(0n)
    expect(device.memory.takenBytes - before).toBeLessThanOrEqual(32 << 20)
    for (const pointer of pointers) device.free(pointer)
    expect(device.memory.takenBytes).toBe(before)
    const small = openDevice({ memoryBytes: 64 << 20 })
    expect(() => small.alloc(65 << 20)).toThrow(
      /65 MiB of device memory asked for: 0\.000 MiB of a budget of 64 MiB are in use/,
    )
    small.dispose()
  })

  test('compiles and launches a kernel with every kind of argument', () => {
    const [x, y] = [device.alloc(4000), device.alloc(4000)]
    const values = randomNumbers(1000).map((one) => Math.round(64 * one) / 64)
    device.upload(x, values)
    const offsets = new Uint8Array(16)
    const view = new DataView(offsets.buffer)
    view.setInt32(0, 3, true)
    view.setFloat32(4, 0.25, true)
    view.setBigInt64(8, -7n, true)
    const kernel = device.kernel('probe', 'affine', { SCALE: 2 })
    const args = device.args([y, x, f32(0.5), i32(1000), offsets])
    device.launch(kernel, [8, 1, 1], [128, 1, 1], 0, args)
    // Values of 1/64: every sum is exact, in whatever order.
    expect(floatsOf(device.download(y, 4000))).toEqual(values.map((one) => one - 3.75))
    args.set(2, f32(2))
    device.launch(kernel, [8, 1, 1], [128, 1, 1], 0, args)
    expect(floatsOf(device.download(y, 4000))).toEqual(values.map((one) => 4 * one - 3.75))
    expect(kernel.registers).toBeGreaterThan(0)
    expect(device.blocksPerSm(kernel, 128, 0)).toBeGreaterThan(0)
  })

  test('finds the half-precision header', () => {
    const [x, y] = [device.alloc(16), device.alloc(8)]
    device.upload(x, Float32Array.of(1, -2, 0.5, 65504))
    const kernel = device.kernel('probe', 'to_half')
    device.launch(kernel, [1, 1, 1], [32, 1, 1], 0, device.args([y, x, i32(4)]))
    const halves = new Uint16Array(device.download(y, 8).buffer)
    expect([...halves]).toEqual([0x3c00, 0xc000, 0x3800, 0x7bff])
  })

  test('gives a block as much shared memory as the chip has', () => {
    const floats = device.info.sharedBytesPerBlock / 4
    const y = device.alloc(4)
    device.fill(y, 0, 4)
    const kernel = device.kernel('probe', 'shared_sum')
    device.launch(kernel, [2, 1, 1], [256, 1, 1], 4 * floats, device.args([y, i32(floats)]))
    expect(floatsOf(device.download(y, 4))[0]).toBe(2 * floats)
  })

  test('a damaged image in the cache is recompiled', () => {
    const cache = mkdtempSync(join(tmpdir(), 'skein-cubin-'))
    vi.stubEnv('XDG_CACHE_HOME', cache)
    const compiled = () => {
      const other = openDevice()
      expect(other.kernel('probe', 'count_up').registers).toBeGreaterThan(0)
      other.dispose()
      const folder = join(cache, 'skein', 'cubin')
      const [name, ...more] = readdirSync(folder)
      expect(more).toEqual([])
      return join(folder, name!)
    }
    const path = compiled()
    const image = readFileSync(path)
    writeFileSync(path, image.subarray(0, 100))
    expect(compiled()).toBe(path)
    expect(readFileSync(path)).toEqual(image)
    vi.unstubAllEnvs()
    rmSync(cache, { recursive: true })
  })

  test('the compiler reports errors in a kernel', () => {
    expect(() => device.kernel('broken', 'broken')).toThrow(/broken\.cu[\s\S]*undeclared/)
    expect(() => device.kernel('probe', 'nothing')).toThrow(/probe\.cu: nothing[\s\S]*NOT_FOUND/)
    expect(() => device.kernel('missing', 'x')).toThrow(/missing\.cu is missing/)
  })

  test('an impossible launch is refused with its numbers', () => {
    const kernel = device.kernel('probe', 'count_up')
    const args = device.args([device.alloc(4)])
    expect(() => device.launch(kernel, [1, 1, 1], [4096, 1, 1], 0, args)).toThrow(
      /launch of probe\.cu: count_up, grid \[1,1,1\], block \[4096,1,1\].*CUDA_ERROR_INVALID_VALUE/,
    )
    device.synchronize()
  })

  test('a graph runs when launched, not when captured, with the memory of that time', () => {
    const counter = device.alloc(4)
    device.fill(counter, 0, 4)
    const kernel = device.kernel('probe', 'count_up')
    const args = device.args([counter])
    const host = device.pinned(4)
    const graph = device.capture(() => {
      for (let i = 0; i < 10; i++) device.launch(kernel, [1, 1, 1], [32, 1, 1], 0, args)
      device.downloadAsync(host, counter, 4)
    }, 'ten')
    expect(graph.numNodes).toBe(11)
    expect(intsOf(device.download(counter, 4))[0]).toBe(0)
    graph.launch()
    graph.launch()
    device.synchronize()
    expect(new Int32Array(host.buffer)[0]).toBe(20)
    graph.dispose()
    expect(() => graph.launch()).toThrow('after dispose')
  })

  test('a failed recording leaves the device usable', () => {
    expect(() => device.capture(() => device.alloc(4))).toThrow('alloc while a graph is being captured')
    expect(device.isCapturing).toBe(false)
    const at = device.alloc(4)
    device.upload(at, Int32Array.of(5))
    expect(intsOf(device.download(at, 4))[0]).toBe(5)
    device.free(at)
  })

  test('a dependent launch sees what the previous one wrote, launched directly and in a graph', () => {
    if (device.computeCapability[0] < 9) return
    const [counter, seen] = [device.alloc(4), device.alloc(4)]
    device.fill(counter, 0, 4)
    device.fill(seen, 0, 4)
    const [up, follow] = [device.kernel('probe', 'count_up'), device.kernel('probe', 'follow')]
    const [upArgs, followArgs] = [device.args([counter]), device.args([seen, counter])]
    const both = () => {
      device.launch(up, [100, 1, 1], [32, 1, 1], 0, upArgs)
      device.launch(follow, [1, 1, 1], [32, 1, 1], 0, followArgs, { pdl: true })
    }
    both()
    device.capture(both).launch()
    expect(intsOf(device.download(seen, 4))[0]).toBe(100 + 200)
  })

  test('clusters', () => {
    if (device.computeCapability[0] < 9) return
    const ranks = device.alloc(16 * 4)
    const kernel = device.kernel('probe', 'cluster_rank')
    device.launch(kernel, [16, 1, 1], [32, 1, 1], 0, device.args([ranks]), { cluster: 4 })
    const expected = Array.from({ length: 16 }, (_, i) => i % 4)
    expect([...intsOf(device.download(ranks, 64))]).toEqual(expected)
  })

  test('times are those of the device', () => {
    const at = device.alloc(256 << 20)
    const large = device.time(() => device.fill(at, 0, 256 << 20), 5)
    const small = device.time(() => device.fill(at, 0, 1024), 5)
    expect(large).toBeGreaterThan(3 * small)
    device.free(at)
  })

  test('use after dispose is refused', () => {
    const other = openDevice()
    other.dispose()
    expect(() => other.alloc(4)).toThrow('used after dispose()')
    expect(intsOf(device.download(device.alloc(4), 4)).length).toBe(1)
  })
})
