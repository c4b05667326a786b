/** `skein bench ops`: products alone on the CPU, beside what its cores can read and multiply. */
import { defineCommand } from 'citty'
import { createCpuBackend, measureMachine } from '../backend/cpu/cpu.ts'
import { benchOps, DEFAULT_OPS_PLAN, type OpsRow } from '../bench/ops.ts'
import { SkeinError } from '../errors.ts'
import { integer, integers, number, text } from './args.ts'
import { printJson, printTable } from './output.ts'

const { types, shapes, tokens } = DEFAULT_OPS_PLAN

export const benchOpsCommand = defineCommand({
  meta: {
    name: 'ops',
    description: 'Matrix products alone on the CPU, and the limits of its cores',
  },
  args: {
    types: { type: 'string', default: types.join(','), description: 'How weights are held' },
    shapes: {
      type: 'string',
      default: shapes.map((shape) => shape.join('x')).join(','),
      description: 'OUTPUTSxINPUTS of each matrix',
    },
    tokens: { type: 'string', default: tokens.join(','), description: 'Tokens of each case' },
    seconds: { type: 'string', default: '0.5', description: 'Shortest time of a case' },
    threads: { type: 'string', description: 'CPU threads (default: all cores)' },
    json: { type: 'boolean', description: 'One JSON object' },
  },
  run({ args }) {
    const threads = integer(args, 'threads', 1, 1024)
    const options = threads === undefined ? {} : { threads }
    const plan = {
      types: listOf(text(args, 'types'), 'types', (name) => types.find((one) => one === name)),
      shapes: listOf(text(args, 'shapes'), 'shapes', shapeOf),
      tokens: integers(args, 'tokens'),
      minSeconds: number(args, 'seconds', 0, 3600) ?? DEFAULT_OPS_PLAN.minSeconds,
      minBytes: DEFAULT_OPS_PLAN.minBytes,
    }
    const machine = measureMachine(options)
    const rows = benchOps(() => createCpuBackend(options), plan)
    if (args.json) {
      printJson({ machine, rows })
      return
    }
    process.stdout.write(
      `read ${gigas(machine.readBytesPerSecond, 1)} GB/s, f32 multiply-add ${gigas(machine.fmaOperationsPerSecond, 0)} GFLOP/s\n`,
    )
    printRows(rows)
  },
})

function listOf<T>(given = '', flag: string, parse: (part: string) => T | undefined): T[] {
  return given.split(',').map((part) => {
    const value = parse(part)
    if (value !== undefined) return value
    throw new SkeinError('invalid_request', `--${flag} does not take "${part}"; see --help`, {
      param: flag,
    })
  })
}

function shapeOf(part: string): readonly [number, number] | undefined {
  const match = /^([1-9]\d{0,6})x([1-9]\d{0,6})$/.exec(part)
  return match ? [Number(match[1]), Number(match[2])] : undefined
}

const gigas = (perSecond: number, digits: number) => (perSecond / 1e9).toFixed(digits)

function printRows(rows: readonly OpsRow[]): void {
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
}
