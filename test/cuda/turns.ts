/**
 * Tokens a second of the engine's own loop, host work and all: what `bench engine` measures of the runner alone. First
 * with every row decoding; then, where SECONDS are given, with answers that end and others that begin all the time,
 * without kept prefixes and with. No HTTP, no sessions.
 *
 *   node test/cuda/turns.ts MODEL DEVICE[,DEVICE…] ROWS[,ROWS…] [TOKENS [SECONDS]]
 */
import { setImmediate } from 'node:timers/promises'
import { type DeviceChoice, parseDevice } from '../../src/device-choice.ts'
import { Engine } from '../../src/engine/engine.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import { loadRunner } from '../../src/load.ts'
import type { Runner } from '../../src/model/runner.ts'
import { requestOf, SAMPLING } from '../engine/kit.ts'
import { someTokens } from '../helpers/runner.ts'

const PROMPT_TOKENS = 16
const LONGER_PROMPT = 200

const [model = '', names = '', counts = '64', tokens = '128', seconds] = process.argv.slice(2)
const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 26), 32) }

function deviceOf(name: string): DeviceChoice {
  const device = parseDevice(name)
  if (device === undefined) throw new Error(`no device ${name}`)
  return device
}

function submit(engine: Engine, i: number, promptTokens: number, maxTokens: number): void {
  const sampling = { ...SAMPLING, seed: BigInt(i), topP: 0.5 }
  const prompt = someTokens(promptTokens, i)
  engine.submit(requestOf({ id: `${i}`, prompt, maxTokens, sampling }))
}

async function drain(engine: Engine): Promise<void> {
  while (engine.hasWork) {
    engine.turn()
    await setImmediate()
  }
}

/** From when all rows decode until the first ends. */
async function steadySpeed(engine: Engine, numRows: number, maxTokens: number): Promise<number> {
  for (let i = 0; i < numRows; i++) submit(engine, i, PROMPT_TOKENS, maxTokens)
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
  const { generatedTokens } = engine.stats
  const speed = (1000 * (generatedTokens - begin.tokens)) / (performance.now() - begin.at)
  await drain(engine)
  return speed
}

/** Generated tokens of answers of many lengths, each followed by another with a prompt of its own. */
async function changingSpeed(engine: Engine, numRows: number, maxTokens: number, ms: number) {
  let next = 0
  const submitNext = () =>
    submit(engine, next, LONGER_PROMPT, 1 + ((next++ * 37) % (2 * maxTokens)))
  for (let i = 0; i < numRows; i++) submitNext()
  const begin = performance.now()
  // The first answers begin together; the second half of the time has them mixed.
  let half = { at: 0, tokens: 0 }
  while (performance.now() < begin + ms) {
    for (const { type } of engine.turn() ?? []) if (type === 'finish') submitNext()
    if (performance.now() < begin + ms / 2)
      half = { at: performance.now(), tokens: engine.stats.generatedTokens }
    await setImmediate()
  }
  const { generatedTokens } = engine.stats
  const speed = (1000 * (generatedTokens - half.tokens)) / (performance.now() - half.at)
  for (const id of engine.liveIds) engine.cancel(id)
  await drain(engine)
  return speed
}

/** An engine of its own over the one runner. */
function engineOn(runner: Runner, keepsPrefixes: boolean): Engine {
  return new Engine(runner, tokenBytes, {}, keepsPrefixes ? DEFAULT_STATE_OPTIONS : null)
}

const ppDevices = names.split(',').map(deviceOf)
const rowCounts = counts.split(',').map(Number)
const runner = loadRunner({ model, device: ppDevices[0], ppDevices, slots: Math.max(...rowCounts) })
const say = (what: string, speed: number) =>
  process.stdout.write(`${names} ${what}: ${speed.toFixed(0)} tokens/s\n`)

const plain = engineOn(runner, false)
for (const numRows of rowCounts) {
  await steadySpeed(plain, numRows, 16)
  say(`${numRows} rows`, await steadySpeed(plain, numRows, Number(tokens)))
}
if (seconds !== undefined) {
  const numRows = Math.max(...rowCounts)
  for (const keepsPrefixes of [false, true]) {
    const engine = engineOn(runner, keepsPrefixes)
    const speed = await changingSpeed(engine, numRows, Number(tokens), 1000 * Number(seconds))
    say(`${numRows} rows that change, prefixes ${keepsPrefixes ? 'kept' : 'not kept'}`, speed)
    if (engine.failure !== null) throw engine.failure
  }
}
if (plain.failure !== null) throw plain.failure
plain.dispose()
