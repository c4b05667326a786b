/**
 * Watches a serving worker: whether it makes steps while there is work, whether it answers while there is none, and how
 * much memory it uses. It reports a problem once; the supervisor decides what to do.
 */

import { randomUUID } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import type { EngineClient } from '../../engine/client.ts'
import { PLAIN_REQUEST, PLAIN_SAMPLING } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'

interface WatchTiming {
  /** Work pending and no step for this long: it hangs. Longer than any step takes. */
  readonly stallMs: number
  /** After this idle time a token is requested. */
  readonly probeMs: number
  /** No message and no processor use for this long: the process is stopped or deadlocked. */
  readonly silentMs: number
}

export type Illness = 'stalled' | 'silent' | 'failing' | 'too large'

interface WatchOptions {
  readonly pid: number
  readonly ping: () => void
  readonly heardAt: () => number
  readonly timing: WatchTiming
  /** Memory that the process may use; null: no limit. */
  readonly maxBytes: number | null
  readonly onIll: (illness: Illness, reason: string) => void
}

const LOOK_MS = 1000

export class WorkerWatch {
  readonly #client: EngineClient
  readonly #options: WatchOptions
  readonly #timer: NodeJS.Timeout
  #steps = -1
  #steppedAt = performance.now()
  #isProbing = false
  #isOver = false
  #bytes: number | null = null
  #lookedAt = performance.now()
  /** When it last showed life. */
  #livedAt = performance.now()
  #ticks: number | null = null
  #numProbes = 0

  constructor(client: EngineClient, options: WatchOptions) {
    this.#client = client
    this.#options = options
    const { stallMs, probeMs, silentMs } = options.timing
    const every = Math.min(LOOK_MS, stallMs / 4, silentMs / 4, probeMs)
    this.#timer = setInterval(() => void this.#look(), every).unref()
  }

  /** Memory of the process at the last check; null if the system does not report it. */
  get bytes(): number | null {
    return this.#bytes
  }

  /** Tokens requested as probes. They are in the worker's counts but belong to no request. */
  get numProbes(): number {
    return this.#numProbes
  }

  /** Requests a token and rethrows the worker's error. A worker that never answers has stalled. */
  async probe(): Promise<void> {
    this.#isProbing = true
    try {
      await probe(this.#client)
      this.#numProbes++
    } finally {
      this.#isProbing = false
    }
  }

  end(): void {
    this.#isOver = true
    clearInterval(this.#timer)
  }

  async #look(): Promise<void> {
    this.#lookAtSteps()
    this.#lookForLife(await processorTicks(this.#options.pid))
    this.#bytes = await residentBytes(this.#options.pid)
    const { maxBytes } = this.#options
    if (maxBytes === null || this.#bytes === null || this.#bytes <= maxBytes) return
    const [taken, allowed] = [this.#bytes, maxBytes].map((bytes) => Math.round(bytes / 2 ** 20))
    this.#tell('too large', `it takes ${taken} MiB of memory and may take ${allowed}`)
  }

  /**
   * A process in a long step does not answer but uses the processor. Nothing is reported if this gateway itself stood
   * still, or if the system does not report processor time.
   */
  #lookForLife(ticks: number | null): void {
    const { silentMs } = this.#options.timing
    const now = performance.now()
    const isLate = now - this.#lookedAt > silentMs / 2
    const isBusy = ticks === null || ticks !== this.#ticks
    this.#lookedAt = now
    this.#ticks = ticks
    this.#livedAt = Math.max(this.#livedAt, this.#options.heardAt())
    if (isLate || isBusy) this.#livedAt = now
    this.#options.ping()
    const silent = now - this.#livedAt
    if (silent < silentMs) return
    this.#tell('silent', `it has neither answered nor computed for ${Math.round(silent / 1000)} s`)
  }

  #lookAtSteps(): void {
    const { running, waiting, steps } = this.#client.stats
    const isPending = running + waiting > 0 || this.#isProbing
    const idleMs = performance.now() - this.#steppedAt
    if (steps !== this.#steps) {
      this.#steps = steps
      this.#steppedAt = performance.now()
    } else if (isPending && idleMs >= this.#options.timing.stallMs) {
      this.#tell('stalled', `it has work and has made no step for ${Math.round(idleMs / 1000)} s`)
    } else if (!isPending && idleMs >= this.#options.timing.probeMs) void this.#probeIdle()
  }

  async #probeIdle(): Promise<void> {
    this.#steppedAt = performance.now()
    try {
      await this.probe()
    } catch (thrown) {
      // A full queue is a sign of life; the end of a worker is noticed elsewhere.
      const { code, message } = SkeinError.from(thrown)
      if (code === 'queue_full' || code === 'model_not_loaded' || code === 'aborted') return
      this.#tell('failing', `it does not answer: ${message}`)
    }
  }

  #tell(illness: Illness, reason: string): void {
    if (this.#isOver) return
    this.end()
    this.#options.onIll(illness, reason)
  }
}

/** Resident memory of a process, on systems with /proc. */
async function residentBytes(pid: number): Promise<number | null> {
  try {
    const status = await readFile(`/proc/${pid}/status`, 'latin1')
    const kibibytes = /^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]
    return kibibytes === undefined ? null : 1024 * Number(kibibytes)
  } catch {
    return null
  }
}

/** Processor time that a process has used, in hundredths of a second, on systems with /proc. */
async function processorTicks(pid: number): Promise<number | null> {
  try {
    const stat = await readFile(`/proc/${pid}/stat`, 'latin1')
    // Skips the name, which may hold anything. Fields 12 and 13 after it are user and kernel time.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return Number(fields[11]) + Number(fields[12])
  } catch {
    return null
  }
}

/** Rethrows the engine's error. */
async function probe(client: EngineClient): Promise<void> {
  const request = {
    ...PLAIN_REQUEST,
    id: `probe-${randomUUID()}`,
    prompt: Int32Array.of(0),
    maxTokens: 1,
    sampling: { ...PLAIN_SAMPLING, temperature: 0 },
    stop: { strings: [], tokens: [], ignoreEos: true },
    cache: 'no-store',
  } as const
  for await (const event of client.generate(request))
    if (event.type === 'error') throw SkeinError.fromShape(event.error)
}
