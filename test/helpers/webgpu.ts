/** Whether tests can use WebGPU here. */
import { existsSync } from 'node:fs'
import { vi } from 'vitest'
import { webgpuReport } from '../../src/backend/webgpu/adapter.ts'

/** Debian's Chromium brings a Vulkan driver that computes on the processor. */
const SWIFTSHADER = '/usr/lib/chromium/vk_swiftshader_icd.json'

if (process.env.VK_DRIVER_FILES === undefined && existsSync(SWIFTSHADER))
  process.env.VK_DRIVER_FILES = SWIFTSHADER

/** Why not; null where an adapter was found. */
export const { problem: WEBGPU_PROBLEM } = await webgpuReport()
if (WEBGPU_PROBLEM !== null) console.log(`tests of webgpu are skipped: ${WEBGPU_PROBLEM}`)
// A processor that plays a GPU takes its time, above all beside other tests.
else vi.setConfig({ testTimeout: 300_000, hookTimeout: 300_000 })
