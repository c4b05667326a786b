/**
 * Entry of a worker process: loads one model and serves its engine to the gateway that forked it. The first argument is
 * the choice as JSON. Native code may abort this process, which loses only its own streams.
 */
import { openedLibraries } from '../backend/cpu/context.ts'
import { channelToParent } from '../engine/client/process-channel.ts'
import { serveEngine } from '../engine/client/worker-loop.ts'
import { SkeinError } from '../errors.ts'
import { lowerHelpers } from '../threads/helpers.ts'
import { loadEngine } from './load.ts'
import type { EngineChoice } from './model-choice.ts'
import { usualSlices } from './slice.ts'
import { watchEventLoop } from './watchdog.ts'

/** Progress messages are for a progress bar, which needs no more. A small model is loaded in less. */
const PROGRESS_MS = 50
const STAGE_MS = 2000
/** Without a turn of the loop or work of a kernel. With the time to tell where, it is known within 10 s. */
const HANG_MS = 7000

async function main(): Promise<number> {
  usualSlices()
  lowerHelpers()
  const channel = channelToParent()
  // A signal from the terminal reaches the whole process group; the gateway decides when its workers end.
  process.on('SIGINT', () => {})
  let reportedAt = performance.now()
  try {
    // The gateway writes this argument (launcher.ts).
    const choice = JSON.parse(process.argv[2] ?? '') as EngineChoice
    const onProgress = (doneBytes: number, totalBytes: number) => {
      const now = performance.now()
      if (now < reportedAt + PROGRESS_MS && doneBytes < totalBytes) return
      reportedAt = now
      channel.send({ type: 'progress', doneBytes, totalBytes })
    }
    const tell = (text: string) => channel.send({ type: 'stage', text })
    tell('opening the device')
    const { engine } = await loadEngine(choice, onProgress, {
      onProgress: tellOfWarmUp(tell),
      onWarning: (message) => process.stderr.write(`skein: ${message}\n`),
      onStage: tell,
    })
    // The same for a signal to the whole service: the gateway still wants states saved and answers finished.
    process.on('SIGTERM', () => {})
    process.on('SIGHUP', () => {})
    watchEventLoop(HANG_MS, openedLibraries())
    return await serveEngine(engine, channel)
  } catch (error) {
    channel.send({ type: 'fatal', error: SkeinError.from(error).toShape() })
    await channel.close()
    return 1
  }
}

/**
 * The first start on a machine tunes its matrix products, which takes a while; later starts read the results from disk.
 */
function tellOfWarmUp(tell: (text: string) => void): (done: number, total: number) => void {
  let last = performance.now()
  return (done, total) => {
    if (done > 1 && performance.now() - last < STAGE_MS) return
    last = performance.now()
    tell(`preparing the device, ${done} of ${total} batch sizes`)
  }
}

process.exit(await main())
