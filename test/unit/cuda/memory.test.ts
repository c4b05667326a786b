import fc from 'fast-check'
import { expect, test } from 'vitest'
import { DeviceMemory, Slab } from '../../../src/backend/cuda/device/memory.ts'
import { NativeArena } from '../../../src/backend/cuda/driver/arena.ts'
import type { CudaDriver } from '../../../src/backend/cuda/driver/driver.ts'
import { f32, i32, i64, KernelArgs } from '../../../src/backend/cuda/kernel/args.ts'
import { viewMemory } from '../../../src/backend/ffi.ts'

test('kernel arguments are laid out as the driver expects', () => {
  const arena = new NativeArena()
  const struct = Uint8Array.from({ length: 20 }, (_, i) => i + 1)
  const args = new KernelArgs(arena, [0x7f00_0000_1000n, i32(-5), f32(0.5), i64(-1n), struct])
  const pointers = new BigUint64Array(viewMemory(args.address, 8 * 5))
  const at = (index: number, bytes: number) => new DataView(viewMemory(pointers[index]!, bytes))
  expect(at(0, 8).getBigUint64(0, true)).toBe(0x7f00_0000_1000n)
  expect(at(1, 4).getInt32(0, true)).toBe(-5)
  expect(at(2, 4).getFloat32(0, true)).toBe(0.5)
  expect(at(3, 8).getBigInt64(0, true)).toBe(-1n)
  expect(new Uint8Array(viewMemory(pointers[4]!, 20))).toEqual(struct)
  for (const pointer of pointers) expect(pointer % 16n).toBe(0n)
  args.set(1, i32(7))
  expect(at(1, 4).getInt32(0, true)).toBe(7)
  expect(() => args.set(1, f32(7))).toThrow('kernel argument 1 is i32, not f32')
  expect(() => args.set(4, struct.subarray(1))).toThrow('struct of 20 bytes, not struct of 19 bytes')
  expect(() => args.set(5, i32(0))).toThrow('kernel argument 5 of 5')
  expect(() => args.set(1, i32(2 ** 31))).toThrow('2147483648 as an int argument')
  arena.dispose()
  expect(() => arena.allocate(8)).toThrow('after dispose')
})

test('the blocks of an arena do not overlap and are cleared and aligned, also beyond one chunk', () => {
  const arena = new NativeArena()
  const blocks = Array.from({ length: 500 }, (_, i) => arena.allocate(1 + ((i * 37) % 700)))
  const large = arena.allocate(200_000)
  expect(large.view.byteLength).toBe(200_000)
  for (const { address, view } of blocks) {
    expect(address % 16n).toBe(0n)
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength)
    expect(bytes.every((byte) => byte === 0)).toBe(true)
    bytes.fill(255)
  }
  arena.dispose()
})

test('a slab never hands out the same bytes twice, and is whole again when everything is freed', () => {
  const step = fc.record({ bytes: fc.integer({ min: 1, max: 300 }), drop: fc.nat() })
  fc.assert(
    fc.property(fc.array(step, { maxLength: 80 }), (steps) => {
      const slab = new Slab(1000)
      const live = new Map<number, number>()
      for (const { bytes, drop } of steps) {
        const at = slab.alloc(bytes)
        if (at === null) {
          const [start] = [...live.keys()].sort((a, b) => a - b).slice(drop % live.size)
          live.delete(start!)
          slab.free(start!)
          continue
        }
        expect(at + bytes).toBeLessThanOrEqual(1000)
        for (const [start, size] of live) expect(at + bytes <= start || start + size <= at).toBe(true)
        live.set(at, bytes)
      }
      expect(slab.freeBytes).toBe(1000 - [...live.values()].reduce((a, b) => a + b, 0))
      for (const start of live.keys()) slab.free(start)
      expect(slab.isEmpty).toBe(true)
      expect(slab.alloc(1000)).toBe(0)
    }),
    { seed: 7 },
  )
  expect(() => new Slab(8).free(0)).toThrow('offset 0 freed but not allocated')
})

test.each([1000, 5 << 20])(
  'blocks of %i bytes lie side by side, whatever is asked for and given back between them',
  (bytes) => {
    const taken = new Map<bigint, number>()
    let next = 1n << 30n
    const call = (name: string, at: BigUint64Array | bigint, size = 0) => {
      if (name === 'cuMemFree_v2') expect(taken.delete(at as bigint)).toBe(true)
      else {
        ;(at as BigUint64Array)[0] = next
        taken.set(next, size)
        next += 1n << 30n
      }
    }
    const memory = new DeviceMemory({ call } as unknown as CudaDriver, 1e9)
    const others = [memory.alloc(500)]
    memory.sideBySide(3, bytes)
    const row = [0, 1, 2].map(() => {
      const own = memory.alloc(bytes)
      // Scratch of the same size, which is given back.
      memory.free(memory.alloc(bytes))
      others.push(memory.alloc(500), memory.alloc(6 << 20))
      return own
    })
    const size = BigInt(256 * Math.ceil(bytes / 256))
    expect(row.map((one) => one - row[0]!)).toEqual([0n, size, 2n * size])
    others.push(memory.alloc(bytes))
    expect(others.every((one) => one < row[0]! || one >= row[2]! + size)).toBe(true)
    for (const one of [...row, ...others]) memory.free(one)
    expect([taken.size, memory.takenBytes]).toEqual([0, 0])
  },
)
