/**
 * Greedy answers of a model on one device or several, as a line of JSON. Runs with different devices must print the
 * same line. Rows are stepped in groups of the same sizes whatever the devices, so that the kernels are the same too.
 *
 *   node test/cuda/greedy.ts MODEL DEVICE[,DEVICE…] [ROWS [TOKENS [MEMORY_GB]]]
 */
import { type DeviceChoice, parseDevice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { Flight, RowResult, Runner } from '../../src/model/runner.ts'
import { draw, someTokens } from '../helpers/runner.ts'

const GROUPS = 4
/** Few, so that products use our own kernels: the library may choose differently on every GPU. */
const PROMPT_TOKENS = 2

const [model = '', names = '', rows = '32', tokens = '32', gigabytes] = process.argv.slice(2)

function deviceOf(name: string): DeviceChoice {
  const device = parseDevice(name)
  if (device === undefined) throw new Error(`no device ${name}`)
  return device
}

function answers(runner: Runner, numRows: number, numTokens: number): number[][] {
  const slots = Array.from({ length: numRows }, (_, slot) => slot)
  const groups = Array.from({ length: GROUPS }, (_, g) => slots.filter((s) => s % GROUPS === g))
  const drawn = slots.map((): number[] => [])
  const flights = new Map<number[], Flight<RowResult[]>>()
  const land = (group: number[]) => {
    for (const [i, result] of flights.get(group)?.result().entries() ?? [])
      drawn[group[i]!]!.push(result.drawn[0]!.token)
  }
  const step = (group: number[], position: number) => {
    const rows = group.map((slot) => ({
      slot,
      tokens: position === 0 ? someTokens(PROMPT_TOKENS, slot) : Int32Array.of(drawn[slot]!.at(-1)!),
      samples: [draw(slot, { temperature: 0, position })],
    }))
    flights.set(group, runner.launch(rows))
    if (runner.maxFlights < GROUPS) flights.get(group)!.result()
  }
  for (const slot of slots) runner.clearSlot(slot)
  for (let position = 0; position < numTokens; position++)
    for (const group of groups) {
      if (position > 0) land(group)
      step(group, position)
    }
  for (const group of groups) land(group)
  return drawn
}

const ppDevices = names.split(',').map(deviceOf)
const runner = loadRunner({
  model,
  device: ppDevices[0],
  ppDevices,
  slots: Number(rows),
  ...(gigabytes === undefined ? {} : { memoryBytes: Number(gigabytes) * 1e9 }),
})
const all = answers(runner, Number(rows), Number(tokens))
process.stdout.write(`${JSON.stringify(all)}\n`)
process.stderr.write(`${runner.info.device}: ${new Set(all.map(String)).size} different answers\n`)
runner.dispose()
