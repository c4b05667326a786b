/**
 * The algorithms that won, on disk: one JSON file per GPU model, driver and cuBLASLt version, for their codes mean
 * nothing elsewhere. A file that is damaged or cannot be written costs tuning time, nothing else. Knows no cuBLASLt.
 */

import { createHash } from 'node:crypto'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { parsedJson } from '../../../files/bytes.ts'
import { cacheFolder, readCached, writeCached } from '../kernel/image.ts'
import { KERNEL_DIR } from '../kernel/source.ts'
import { ALGORITHM_BYTES } from './cublaslt.ts'

interface Plan {
  readonly algorithm: Uint8Array
  /** On the device, weights not in the cache; for people who read the file. */
  readonly microseconds: number
}

interface PlanMachine {
  readonly gpu: string
  readonly driver: string
  readonly cublasLt: number
}

/** Of the file's layout and of the way candidates are chosen and timed. */
const VERSION = 2

export class PlanCache {
  readonly path: string
  readonly #folder: string
  readonly #machine: PlanMachine
  #plans: Map<string, Plan> | null = null
  #known: ReadonlyMap<string, Uint8Array> | null = null

  constructor(machine: PlanMachine, folder = cacheFolder('gemm')) {
    const parts = JSON.stringify([VERSION, machine.gpu, machine.driver, machine.cublasLt])
    const name = createHash('sha256').update(parts).digest('hex').slice(0, 32)
    this.#machine = machine
    this.#folder = folder
    this.path = join(folder, `${name}.json`)
  }

  /** Of what was tuned here, else of what comes with Skein for this card and library. */
  get(key: string): Uint8Array | undefined {
    this.#plans ??= this.#read()
    const own = this.#plans.get(key)
    if (own !== undefined) return own.algorithm
    this.#known ??= knownPlans(this.#machine)
    return this.#known.get(key)
  }

  /** Adds to what is on disk by now, so that two processes that tune at once lose little. */
  set(key: string, plan: Plan): void {
    this.#plans = new Map([...(this.#plans ?? []), ...this.#read(), [key, plan]])
    const plans = Object.fromEntries(
      [...this.#plans].map(([name, { algorithm, microseconds }]) => [
        name,
        { algorithm: Buffer.from(algorithm).toString('base64'), microseconds },
      ]),
    )
    writeCached(this.#folder, this.path, JSON.stringify({ machine: this.#machine, plans }, null, 1))
  }

  #read(): Map<string, Plan> {
    const bytes = readCached(this.path)
    return bytes === null ? new Map() : parsePlans(new TextDecoder().decode(bytes))
  }
}

function parsePlans(text: string): Map<string, Plan> {
  const found = new Map<string, Plan>()
  for (const [key, value] of Object.entries(plansOf(text))) {
    const { algorithm, microseconds } = (value ?? {}) as Record<string, unknown>
    if (typeof algorithm !== 'string' || typeof microseconds !== 'number') continue
    const code = new Uint8Array(Buffer.from(algorithm, 'base64'))
    if (code.length === ALGORITHM_BYTES) found.set(key, { algorithm: code, microseconds })
  }
  return found
}

function plansOf(text: string): object {
  // A JSON value without the field gives undefined.
  const { plans } = Object(parsedJson(text)) as { plans?: unknown }
  return typeof plans === 'object' && plans !== null ? plans : {}
}

/** Tuned on a card of each kind, by scripts/known-plans.js: good for the same version of the library, whatever the driver. */
export const KNOWN_DIR = join(KERNEL_DIR, '../plans')

export interface KnownPlans {
  readonly gpus: readonly string[]
  readonly cublasLt: number
  /** In base64; many products share one. */
  readonly algorithms: readonly string[]
  /** Key of a product → index of its algorithm. */
  readonly plans: Readonly<Record<string, number>>
}

export function knownPlans(
  { gpu, cublasLt }: Pick<PlanMachine, 'gpu' | 'cublasLt'>,
  folder = KNOWN_DIR,
): ReadonlyMap<string, Uint8Array> {
  for (const file of filesOf(folder)) {
    const known = parsed(readCached(join(folder, file)))
    if (known?.cublasLt !== cublasLt || !known.gpus.includes(gpu)) continue
    const codes = known.algorithms.map((text) => new Uint8Array(Buffer.from(text, 'base64')))
    return new Map(Object.entries(known.plans).map(([key, index]) => [key, codes[index]!]))
  }
  return new Map()
}

function parsed(bytes: Uint8Array | null): KnownPlans | null {
  try {
    // Written by known-plans.js, and read by a test.
    return JSON.parse(new TextDecoder().decode(bytes ?? undefined)) as KnownPlans
  } catch {
    return null
  }
}

function filesOf(folder: string): string[] {
  try {
    return readdirSync(folder).filter((name) => name.endsWith('.json'))
  } catch {
    return []
  }
}
