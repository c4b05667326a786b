/** Entry of a thread that compiles kernels nobody has begun, until there are none: see kernel/ahead.ts. */
import { dirname } from 'node:path'
import { workerData } from 'node:worker_threads'
import { BEGUN, type Compiled, type CompilingThread, DONE, WAITING } from '../kernel/ahead.ts'
import { writeCached } from '../kernel/image.ts'
import { seal } from '../kernel/seal.ts'
import type { Compiler, CompilerInput } from '../kernel/target.ts'
import { KINDS } from './kinds.ts'

const { kind, driverVersion, jobs, states, port } = workerData as CompilingThread // given by startCompiling

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
    compiler ??= KINDS[kind]!.openCompiler(driverVersion)
    return compiler.compile(input)
  } catch {
    return null
  }
}
