/**
 * Tokens per second of the engine's loop while answers end and others start all the time, with and without kept
 * prefixes. `bench engine`, where all rows only decode, does not show this.
 *
 *   node test/cuda/turns.ts MODEL DEVICE[,DEVICE…] ROWS [TOKENS [SECONDS]]
 */
import { setImmediate } from 'node:timers/promises'
import { Engine } from '../../src/engine/engine.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import { type DeviceChoice, parseDevice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import { requestOf, SAMPLING } from '../engine/kit.ts'
import { someTokens } from '../helpers/runner.ts'

const PROMPT_TOKENS = 200

const [model = '', names = '', rows = '64', tokens = '64', seconds = '4'] = process.argv.slice(2)
const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 26), 32) }

function deviceOf(name: string): DeviceChoice {
  const device = parseDevice(name)
  if (device === undefined) throw new Error(`no device ${name}`)
  return device
}

function submit(engine: Engine, i: number, maxTokens: number): void {
  const sampling = { ...SAMPLING, seed: BigInt(i), topP: 0.5 }
  const prompt = someTokens(PROMPT_TOKENS, i)
  engine.submit(requestOf({ id: `${i}`, prompt, maxTokens, sampling }))
}

async function drain(engine: Engine): Promise<void> {
  while (engine.hasWork) {
    engine.turn()
    await setImmediate()
  }
}

/** Answers of many lengths, each followed by another with a prompt of its own. */
async function measure(engine: Engine, numRows: number, maxTokens: number, ms: number) {
  let next = 0
  const submitNext = () => submit(engine, next, 1 + ((next++ * 37) % (2 * maxTokens)))
  for (let i = 0; i < numRows; i++) submitNext()
  const begin = performance.now()
  // The first answers start together; by the second half of the time they are mixed.
  let half = { at: 0, tokens: 0 }
  while (performance.now() < begin + ms) {
    for (const { type } of engine.turn() ?? []) if (type === 'finish') submitNext()
    if (performance.now() < begin + ms / 2) half = { at: performance.now(), tokens: engine.stats.generatedTokens }
    await setImmediate()
  }
  const { generatedTokens } = engine.stats
  const speed = (1000 * (generatedTokens - half.tokens)) / (performance.now() - half.at)
  for (const id of engine.liveIds) engine.cancel(id)
  await drain(engine)
  return speed
}

const ppDevices = names.split(',').map(deviceOf)
const runner = loadRunner({ model, device: ppDevices[0], ppDevices, slots: Number(rows) })
for (const keepsPrefixes of [false, true]) {
  const states = keepsPrefixes ? DEFAULT_STATE_OPTIONS : null
  const engine = new Engine(runner, tokenBytes, {}, states)
  const speed = await measure(engine, Number(rows), Number(tokens), 1000 * Number(seconds))
  const kept = keepsPrefixes ? 'kept' : 'not kept'
  process.stdout.write(`${names}, ${rows} rows, prefixes ${kept}: ${speed.toFixed(0)} tokens/s\n`)
  if (engine.failure !== null) throw engine.failure
}
runner.dispose()
