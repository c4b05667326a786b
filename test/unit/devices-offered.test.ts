import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { devicesOf } from '../../src/host/device-choice.ts'

const bare = { platform: 'linux', hasFile: () => false, hasPackage: () => true }

test('a worker can have webgpu where the package is and a GPU may be', () => {
  expect(devicesOf([], bare)).toEqual(['cpu'])
  expect(devicesOf([1], bare)).toEqual(['cpu', 'cuda:1', 'webgpu'])
  // A container whose card CUDA cannot use has NVIDIA's file alone.
  for (const own of ['/dev/dri', '/dev/nvidiactl', '/dev/dxg'])
    expect(devicesOf([], { ...bare, hasFile: (path: string) => path === own })).toEqual(['cpu', 'webgpu'])
  expect(devicesOf([], { ...bare, platform: 'darwin' })).toEqual(['cpu', 'webgpu'])
})

test('a worker cannot have webgpu without the package', () => {
  expect(devicesOf([1], { ...bare, platform: 'win32', hasPackage: () => false })).toEqual(['cpu', 'cuda:1'])
})

test('the package is looked for where the server would load it', () => {
  const isInstalled = existsSync(join(import.meta.dirname, '../../node_modules/webgpu'))
  expect(devicesOf([1]).includes('webgpu')).toBe(isInstalled)
})
