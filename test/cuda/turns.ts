/**
 * Tokens a second of the engine's own loop, host work and all, while every row decodes: what `bench engine` measures of
 * the runner alone. No HTTP, no sessions.
 *
 *   node test/cuda/turns.ts MODEL DEVICE[,DEVICE…] ROWS[,ROWS…] [TOKENS]
 */
import { setImmediate } from 'node:timers/promises'
import { type DeviceChoice, parseDevice } from '../../src/device-choice.ts'
import { Engine } from '../../src/engine/engine.ts'
import { loadRunner } from '../../src/load.ts'
import { requestOf, SAMPLING } from '../engine/kit.ts'
import { someTokens } from '../helpers/runner.ts'

const PROMPT_TOKENS = 16

const [model = '', names = '', counts = '64', tokens = '128'] = process.argv.slice(2)
const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 26), 32) }

function deviceOf(name: string): DeviceChoice {
  const device = parseDevice(name)
  if (device === undefined) throw new Error(`no device ${name}`)
  return device
}

/** From when all rows decode until the first ends. */
async function measure(engine: Engine, numRows: number, maxTokens: number): Promise<number> {
  for (let i = 0; i < numRows; i++)
    engine.submit(
      requestOf({
        id: `${i}`,
        prompt: someTokens(PROMPT_TOKENS, i),
        maxTokens,
        sampling: { ...SAMPLING, seed: BigInt(i), topP: 0.5 },
      }),
    )
  let [numBegun, numEnded] = [0, 0]
  let begin = { at: 0, tokens: 0 }
  while (numEnded === 0) {
    for (const { type } of engine.turn() ?? []) {
      if (type === 'prompt') numBegun++
      if (type === 'finish') numEnded++
    }
    const { generatedTokens } = engine.stats
    if (numBegun < numRows) begin = { at: performance.now(), tokens: generatedTokens }
    await setImmediate()
  }
  const speed =
    (1000 * (engine.stats.generatedTokens - begin.tokens)) / (performance.now() - begin.at)
  while (engine.hasWork) {
    engine.turn()
    await setImmediate()
  }
  return speed
}

const ppDevices = names.split(',').map(deviceOf)
const rowCounts = counts.split(',').map(Number)
const runner = loadRunner({ model, device: ppDevices[0], ppDevices, slots: Math.max(...rowCounts) })
const engine = new Engine(runner, tokenBytes, { maxWaiting: Math.max(...rowCounts) })
for (const numRows of rowCounts) {
  await measure(engine, numRows, 16)
  const speed = await measure(engine, numRows, Number(tokens))
  process.stdout.write(`${names} ${numRows} rows: ${speed.toFixed(0)} tokens/s\n`)
}
if (engine.failure !== null) throw engine.failure
engine.dispose()
