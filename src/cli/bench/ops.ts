/** `skein bench ops`: measures matrix products on the CPU, next to the memory and arithmetic limits of its cores. */
import { createCpuBackend, measureMachine } from '../../backend/cpu/cpu.ts'
import { benchOps, DEFAULT_OPS_PLAN } from '../../bench/ops.ts'
import { SkeinError } from '../../errors.ts'
import { integers, list, number, toggle } from '../../settings/flags.ts'
import { SETTINGS } from '../../settings/table.ts'
import { defineCommand } from '../terminal/command.ts'
import { printJson, printTable, progressBar } from '../terminal/output.ts'

const { types, shapes, tokens } = DEFAULT_OPS_PLAN

export const benchOpsCommand = defineCommand({
  description: 'Speed of matrix products on the CPU, and the limits of its cores',
  examples: [['skein bench ops --types int8,q4', 'quantised weights']],
  flags: {
    types: list('Weight formats', { default: types.map(nameOf).join(',') }),
    shapes: list('OUTPUTSxINPUTS of each matrix', { default: shapes.map((shape) => shape.join('x')).join(',') }),
    tokens: integers('Tokens of each case', { default: tokens.join(',') }),
    seconds: number(0, 3600)('Minimum seconds of a case', { default: String(DEFAULT_OPS_PLAN.minSeconds) }),
    threads: SETTINGS.threads,
    json: toggle('One JSON object'),
  },
  run({ args }) {
    const { threads } = args
    const options = threads === undefined ? {} : { threads }
    const plan = {
      types: listOf(args.types, 'types', (name) => types.find((one) => one === name || nameOf(one) === name)),
      shapes: listOf(args.shapes, 'shapes', shapeOf),
      tokens: args.tokens,
      minSeconds: args.seconds,
      // Nothing is measured then, so nothing has to exceed the caches.
      minBytes: args.seconds === 0 ? 0 : DEFAULT_OPS_PLAN.minBytes,
    }
    const machine = measureMachine(options)
    const progress = progressBar('measuring', String)
    const count = plan.types.length * plan.shapes.length * plan.tokens.length
    let done = 0
    const rows = benchOps(
      () => createCpuBackend(options),
      plan,
      () => progress(++done, count),
    )
    if (args.json) {
      printJson({ machine, rows })
      return
    }
    process.stdout.write(
      `read ${gigas(machine.readBytesPerSecond, 1)} GB/s, f32 multiply-add ${gigas(machine.fmaOperationsPerSecond, 0)} GFLOP/s\n`,
    )
    printTable([
      ['weights', 'outputs', 'inputs', 'tokens', 'µs', 'GB/s', 'GOP/s', 'repeats'],
      ...rows.map((row) => [
        row.type,
        String(row.rows),
        String(row.columns),
        String(row.tokens),
        (1e6 * row.secondsPerProduct).toFixed(1),
        gigas(row.weightBytesPerSecond, 1),
        gigas(row.operationsPerSecond, 0),
        String(row.repeats),
      ]),
    ])
  },
})

/** As --quant has it. */
function nameOf(type: string): string {
  return type === 'i8' ? 'int8' : type
}

function listOf<T>(given: readonly string[], flag: string, parse: (part: string) => T | undefined): T[] {
  return given.map((part) => {
    const value = parse(part)
    if (value !== undefined) return value
    throw new SkeinError('invalid_request', `--${flag} does not take "${part}"; see --help`, { param: flag })
  })
}

function shapeOf(part: string): readonly [number, number] | undefined {
  const match = /^([1-9]\d{0,6})x([1-9]\d{0,6})$/.exec(part)
  return match ? [Number(match[1]), Number(match[2])] : undefined
}

const gigas = (perSecond: number, digits: number) => (perSecond / 1e9).toFixed(digits)
