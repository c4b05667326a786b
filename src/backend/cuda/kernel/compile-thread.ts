/** Entry of a thread that compiles kernels nobody has begun, until there are none: see ahead.ts. */
import { dirname } from 'node:path'
import { workerData } from 'node:worker_threads'
import { BEGUN, type Compiled, type CompilingThread, DONE, WAITING } from './ahead.ts'
import { openCompiler } from './compiler.ts'
import { writeCached } from './image.ts'
import { seal } from './seal.ts'
import type { Compiler, CompilerInput } from './target.ts'

const { driverMajor, jobs, states, port } = workerData as CompilingThread // given by startCompiling

let compiler: Compiler | undefined

for (const [index, { input, path }] of jobs.entries()) {
  if (Atomics.compareExchange(states, index, WAITING, BEGUN) !== WAITING) continue
  const image = imageOf(input)
  if (image !== null) writeCached(dirname(path), path, seal(image))
  // There before the state says so: who waits looks for it then.
  port.postMessage({ path, image } satisfies Compiled)
  Atomics.store(states, index, DONE)
  Atomics.notify(states, index)
}

function imageOf(input: CompilerInput): Uint8Array | null {
  try {
    compiler ??= openCompiler(driverMajor)
    return compiler.compile(input)
  } catch {
    return null
  }
}
