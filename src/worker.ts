/**
 * Entry of a worker process: loads one model and serves its engine to the gateway that forked it. What to load comes as
 * JSON in the first argument. Native code may abort this process; only its own streams are lost then.
 */
import { channelToParent } from './engine/process-channel.ts'
import { serveEngine } from './engine/worker-loop.ts'
import { SkeinError } from './errors.ts'
import { type EngineChoice, loadEngine } from './load.ts'

/** Progress messages are for a bar: no more than this many. */
const PROGRESS_STEPS = 200

async function main(): Promise<number> {
  const channel = channelToParent()
  // A signal from the terminal reaches the whole group; the gateway decides when its workers end.
  process.on('SIGINT', () => {})
  let nextReport = 0
  try {
    // The gateway writes this argument; see workerCommand in cli/server.ts.
    const choice = JSON.parse(process.argv[2] ?? '') as EngineChoice
    const { engine } = await loadEngine(choice, (doneBytes, totalBytes) => {
      if (doneBytes < nextReport && doneBytes < totalBytes) return
      nextReport = doneBytes + totalBytes / PROGRESS_STEPS
      channel.send({ type: 'progress', doneBytes, totalBytes })
    })
    // Nor does a signal to the whole service: the gateway still wants states saved and answers ended.
    process.on('SIGTERM', () => {})
    return await serveEngine(engine, channel)
  } catch (error) {
    channel.send({ type: 'fatal', error: SkeinError.from(error).toShape() })
    await channel.close()
    return 1
  }
}

process.exit(await main())
