/** Makes a process lose its WebGPU devices: `NODE_OPTIONS="--import …/lose-gpu.mjs"`, then SIGUSR2. */
import { isMainThread } from 'node:worker_threads'

if (isMainThread) process.on('SIGUSR2', lose)

function lose() {
  // Where src/backend/webgpu/adapter.ts keeps them.
  const kept = globalThis[Symbol.for('skein.webgpu')] ?? []
  for (const one of kept) one.destroy?.()
}
