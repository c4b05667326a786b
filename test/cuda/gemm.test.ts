import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { CudaDevice } from '../../src/backend/cuda/device/device.ts'
import { Gemm, type GemmCall, type GemmShape } from '../../src/backend/cuda/gemm/gemm.ts'
import { measureSpeed } from '../../src/backend/cuda/speed.ts'
import { describeCuda, floatsOf, openDevice, randomNumbers } from './kit.ts'

/** The nearest f16; normal numbers only. */
function toHalves(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer)
  return Uint16Array.from(bits, (one) => {
    const exponent = ((one >>> 23) & 255) - 112
    if (exponent <= 0) return 0
    return ((one >>> 16) & 0x8000) | ((exponent << 10) + (((one & 0x7f_ffff) + 0x1000) >>> 13))
  })
}

function fromHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1
  const exponent = (half >>> 10) & 31
  const fraction = half & 1023
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15))
}

interface Case extends GemmShape {
  readonly what: string
}

const CASES: readonly Case[] = [
  { what: 'one token', m: 256, n: 1, k: 128, outType: 'f16' },
  { what: 'a bucket', m: 512, n: 32, k: 256, outType: 'f32' },
  { what: 'between buckets', m: 264, n: 77, k: 520, outType: 'f16' },
  { what: 'the residual', m: 256, n: 5, k: 1024, outType: 'f32', beta: 1 },
  { what: 'deep, so that it is split', m: 64, n: 3, k: 8192, outType: 'f16' },
  { what: 'padded rows', m: 128, n: 6, k: 96, outType: 'f32', ldy: 144 },
  {
    what: 'three at once',
    m: 128,
    n: 10,
    k: 128,
    outType: 'f16',
    batch: 3,
    strides: { w: 128 * 128, x: 40 * 128, y: 40 * 128 },
  },
]

describeCuda('gemm', () => {
  let device: CudaDevice
  let gemm: Gemm
  const cache = mkdtempSync(join(tmpdir(), 'skein-gemm-'))
  const before = process.env.XDG_CACHE_HOME
  beforeAll(() => {
    process.env.XDG_CACHE_HOME = cache
    device = openDevice()
    gemm = new Gemm(device)
  })
  afterAll(() => {
    gemm.dispose()
    device.dispose()
    if (before === undefined) delete process.env.XDG_CACHE_HOME
    else process.env.XDG_CACHE_HOME = before
    rmSync(cache, { recursive: true })
  })

  test.each(CASES)('$what: [$n, $k] · [$m, $k]ᵀ → $outType', (one) => {
    const { m, n, k, batch = 1, ldy = m, outType } = one
    const { w: strideW, x: strideX, y: strideY } = one.strides ?? { w: 0, x: 0, y: 0 }
    const [wCount, xCount, yCount] = [
      (batch - 1) * strideW + m * k,
      (batch - 1) * strideX + n * k,
      (batch - 1) * strideY + n * ldy,
    ]
    const [w, x] = [toHalves(randomNumbers(wCount, 3)), toHalves(randomNumbers(xCount, 4))]
    const start = randomNumbers(yCount, 5)
    const size = outType === 'f32' ? 4 : 2
    const [wAt, xAt] = [device.alloc(2 * wCount), device.alloc(2 * xCount)]
    const yAt = device.alloc(size * yCount)
    device.upload(wAt, w)
    device.upload(xAt, x)
    const call = { ...one, w: wAt, x: xAt, y: yAt }
    const fresh = () => {
      device.fill(yAt, 0xff, size * yCount)
      if (one.beta === 1) device.upload(yAt, start)
    }
    const read = () => {
      const bytes = device.download(yAt, size * yCount)
      return outType === 'f32' ? floatsOf(bytes) : Float32Array.from(new Uint16Array(bytes.buffer), fromHalf)
    }
    gemm.prepare(call)
    fresh()
    gemm.run(call)
    const eager = read()
    const graph = device.capture(() => gemm.run(call))
    fresh()
    graph.launch()
    expect(read()).toEqual(eager)
    graph.dispose()

    let worst = 0
    for (let b = 0; b < batch; b++)
      for (let t = 0; t < n; t++)
        for (let i = 0; i < m; i++) {
          let sum = one.beta === 1 ? start[t * ldy + i]! : 0
          for (let j = 0; j < k; j++)
            sum += fromHalf(w[b * strideW + i * k + j]!) * fromHalf(x[b * strideX + t * k + j]!)
          worst = Math.max(worst, Math.abs(eager[b * strideY + t * ldy + i]! - sum))
        }
    expect(worst).toBeLessThan((outType === 'f32' ? 1e-5 : 1e-3) * Math.sqrt(k) + 1e-6)
    for (const pointer of [wAt, xAt, yAt]) device.free(pointer)
  })

  test('a second process reads the best plans from the disk', () => {
    const folder = join(cache, 'skein', 'gemm')
    const [file] = readdirSync(folder)
    const text = readFileSync(join(folder, file!), 'utf8')
    expect(Object.keys(JSON.parse(text).plans).length).toBeGreaterThanOrEqual(CASES.length)
    const again = new Gemm(device)
    const [{ m, n, k, outType }] = CASES as [Case]
    const pointers = [2 * m * k, 2 * n * k, 2 * n * m].map((bytes) => device.alloc(bytes))
    const [w, x, y] = pointers as [bigint, bigint, bigint]
    for (const pointer of pointers) device.fill(pointer, 0, 256)
    again.prepare({ m, n, k, outType, w, x, y })
    expect(readFileSync(join(folder, file!), 'utf8')).toBe(text)
    again.dispose()
    // A second time does nothing.
    again.dispose()
    for (const pointer of pointers) device.free(pointer)
  })

  test('products that a device which is not here asked for are tuned before their operands are there', () => {
    const images = { image: () => new Uint8Array(0), compileAhead: () => 0, discard: () => {} }
    const absent = CudaDevice.absent(device.info, { images })
    const asked = new Map<string, GemmCall>()
    const itsGemm = new Gemm(absent, asked)
    const shape = { m: 320, k: 192, outType: 'f32' } as const
    for (const n of [40, 48, 90]) itsGemm.prepare({ ...shape, n, w: absent.alloc(1e6), x: absent.alloc(1e6), y: 0n })
    const keys = ['320x192 n48 f32 b0 a256', '320x192 n96 f32 b0 a256']
    expect([...asked.keys()]).toEqual(keys)
    const begun: number[] = []
    gemm.tuneAhead(asked, (count) => begun.push(count))
    gemm.tuneAhead(asked, (count) => begun.push(count))
    expect(begun).toEqual([2])
    const [file] = readdirSync(join(cache, 'skein', 'gemm'))
    const path = join(cache, 'skein', 'gemm', file!)
    const text = readFileSync(path, 'utf8')
    expect(Object.keys(JSON.parse(text).plans)).toEqual(expect.arrayContaining(keys))
    // The plan serves the product itself.
    const [w, x, y] = [1e6, 1e6, 1e6].map((bytes) => device.alloc(bytes)) as [bigint, bigint, bigint]
    gemm.prepare({ ...shape, n: 48, w, x, y })
    expect(readFileSync(path, 'utf8')).toBe(text)
    for (const pointer of [w, x, y]) device.free(pointer)
    itsGemm.dispose()
    absent.dispose()
  })

  test('a shape that was never run cannot be captured', () => {
    const call = { m: 72, n: 7, k: 72, outType: 'f16', w: 0n, x: 0n, y: 0n } as const
    expect(() => device.capture(() => gemm.run(call))).toThrow('before it was run or prepared')
  })

  // Under the sanitizer nothing is timed.
  test.skipIf(process.env.SKEIN_SANITIZER !== undefined)('rates of the device', () => {
    const own = CudaDevice.open({ device: 0 })
    const itsGemm = new Gemm(own)
    const speed = measureSpeed(own, itsGemm)
    expect(speed.copyBytesPerSecond).toBeGreaterThan(50e9)
    expect(speed.matrixFlopsPerSecond).toBeGreaterThan(5e12)
    expect(speed.uploadBytesPerSecond).toBeGreaterThan(1e9)
    expect(speed.launchMicroseconds).toBeLessThan(50)
    expect(speed.graphKernelMicroseconds).toBeLessThan(20)
    itsGemm.dispose()
    own.dispose()
  })
})
