/**
 * Jobs on the folder of pulled models while a server runs: downloads and quantisations, one at a time with a progress
 * record each, and deletions. The hub code resolves names and verifies files; a download that ended early resumes when
 * it is requested again.
 */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { SkeinError } from '../../errors.ts'
import { withoutCheckpointSuffix } from '../../files/checkpoint-suffix.ts'
import { makeFolder } from '../../files/make-folder.ts'
import type { HubModel, HubRepository, ModelQuantisation, PullRecord } from '../../gateway/contract.ts'
import { type Hub, impatientHub, isOffline, openHub } from '../../hub/hub.ts'
import { cachePath, listModels, modelsFolder, removeModel } from '../../hub/model-cache.ts'
import { parseModelName } from '../../hub/model-names.ts'
import { type PullOptions, pullModel, pullVocabulary } from '../../hub/pull.ts'
import { modelsOf, searchHub } from '../../hub/search.ts'
import { hasVocabulary } from './open-model.ts'

const SEARCH_MS = 15_000
/** Ended jobs are listed for a while. */
const MOST_LISTED = 20
/** Named like a repository, so that its files are listed, loaded and deleted like pulled ones. */
const QUANTISED = 'local/quantised'

interface ModelJobsOptions {
  readonly environment?: Readonly<Record<string, string | undefined>>
  /** The compiled `quantise-process.js`. */
  readonly quantiser?: string
}

export class ModelJobs {
  readonly #environment: Readonly<Record<string, string | undefined>>
  readonly #quantiser: string
  #records: PullRecord[] = []

  constructor({ environment = process.env, quantiser = QUANTISER }: ModelJobsOptions = {}) {
    this.#environment = environment
    this.#quantiser = quantiser
  }

  /** Newest first. */
  list(): readonly PullRecord[] {
    return this.#records
  }

  /** Returns at once; the record reports the progress. */
  start(name: string): PullRecord {
    this.#refuseSecond('name')
    checkName(name)
    this.#refuseOffline()
    return this.#begin({ kind: 'fetch', name }, (onProgress) => this.#fetch(name, onProgress))
  }

  /** Quantises a file, given by its name for clients. Returns at once. */
  quantise(input: string, { model_path, quant }: ModelQuantisation): PullRecord {
    this.#refuseSecond('model_path')
    const file = `${withoutCheckpointSuffix(basename(input))}-${quant}.safetensors`
    const output = cachePath(modelsFolder(this.#environment), QUANTISED, file)
    if (existsSync(output)) {
      const message = `quant: ${withoutCheckpointSuffix(file)} is there already; delete it first`
      throw new SkeinError('conflict', message, { param: 'quant' })
    }
    makeFolder(dirname(output))
    return this.#begin({ kind: 'quantise', name: `${model_path} ${quant}` }, (onProgress) =>
      this.#quantise([input, output, quant], (done, total) => onProgress(file, done, total)),
    )
  }

  /** Deletes a pulled or quantised model; returns the bytes freed. `isUsed` tells whether a path is in use. */
  remove(name: string, isUsed: (path: string) => boolean): number {
    const folder = modelsFolder(this.#environment)
    const found = listModels(folder).filter((model) => model.name === name && !model.isPartial)
    const [model] = found
    if (model === undefined) {
      const message = `no pulled model has the name ${name}; files of the model folder are deleted by whoever put them there`
      throw new SkeinError('not_found', message)
    }
    if (found.length > 1) {
      const names = found.map(({ repository }) => repository).join(', ')
      const message = `${names} each have a model ${name}; say which with skein rm on the server's machine`
      throw new SkeinError('conflict', message)
    }
    const running = this.#records.find(({ state }) => state === 'running')
    if (running !== undefined) throw new SkeinError('conflict', `${running.name} is under way; wait for its end`)
    if (isUsed(model.path)) throw new SkeinError('conflict', `a worker uses ${name}; stop it first`)
    return removeModel(folder, model)
  }

  async search(words: string): Promise<readonly HubRepository[]> {
    const found = await searchHub(this.#hub(), words)
    return found.map(({ isGated, ...one }) => ({ ...one, is_gated: isGated }))
  }

  modelsOf(repository: string): Promise<readonly HubModel[]> {
    checkName(repository, 'repository')
    return modelsOf(this.#hub(), repository)
  }

  #hub(): Hub {
    this.#refuseOffline()
    return impatientHub(SEARCH_MS, this.#environment)
  }

  #refuseOffline(): void {
    if (!isOffline(this.#environment)) return
    throw new SkeinError('forbidden', 'this server does not use the hub: it runs with HF_HUB_OFFLINE')
  }

  #refuseSecond(param: string): void {
    const running = this.#records.find(({ state }) => state === 'running')
    if (running === undefined) return
    const doing = running.kind === 'fetch' ? 'pulled' : 'quantised'
    const message = `${param}: ${running.name} is being ${doing}; one model is worked on at a time`
    throw new SkeinError('conflict', message, { param })
  }

  #begin(what: Pick<PullRecord, 'kind' | 'name'>, work: (onProgress: OnProgress) => Promise<void>): PullRecord {
    const record: PullRecord = {
      id: `pull-${randomBytes(5).toString('hex')}`,
      ...what,
      state: 'running',
      ...{ file: null, done_bytes: 0, total_bytes: 0, reason: null },
      ...{ started_at: Date.now() / 1000, ended_at: null },
    }
    this.#records = [record, ...this.#records].slice(0, MOST_LISTED)
    const change = (fields: Partial<PullRecord>) => {
      const { id } = record
      this.#records = this.#records.map((one) => (one.id === id ? { ...one, ...fields } : one))
    }
    const end = (fields: Partial<PullRecord>) => change({ file: null, ended_at: Date.now() / 1000, ...fields })
    work((file, done_bytes, total_bytes) => change({ file, done_bytes, total_bytes })).then(
      () => end({ state: 'done' }),
      (thrown: unknown) => end({ state: 'failed', reason: SkeinError.from(thrown).message }),
    )
    return record
  }

  async #fetch(name: string, onProgress: OnProgress): Promise<void> {
    const options: PullOptions = {
      hub: openHub(this.#environment),
      isOffline: false,
      environment: this.#environment,
      onFile: (file) => (done, total) => onProgress(basename(file), done, total),
    }
    const { path } = await pullModel(name, options)
    if (!hasVocabulary(path)) await pullVocabulary(options)
  }

  /** In a separate process: quantising blocks a thread, and native code can end a process. */
  async #quantise(args: readonly string[], onProgress: (done: number, total: number) => void): Promise<void> {
    const child = spawn(process.execPath, [this.#quantiser, ...args], { stdio: ['ignore', 'pipe', 'ignore'] })
    let reason: string | null = null
    createInterface(child.stdout).on('line', (line) => {
      // Our own process writes these lines.
      const said = JSON.parse(line) as Partial<PullRecord>
      if (said.reason) reason = said.reason
      else onProgress(said.done_bytes ?? 0, said.total_bytes ?? 0)
    })
    const code = await new Promise<number | null>((resolve, reject) => {
      child.once('error', reject)
      child.once('close', resolve)
    })
    if (code !== 0) throw new SkeinError('internal', reason ?? 'the quantising process died')
  }
}

type OnProgress = (file: string, doneBytes: number, totalBytes: number) => void

const QUANTISER = fileURLToPath(new URL('./quantise-process.js', import.meta.url))

function checkName(name: string, param = 'name'): void {
  try {
    parseModelName(name)
  } catch (thrown) {
    const { code, message } = SkeinError.from(thrown)
    throw new SkeinError(code, `${param}: ${message}`, { param, cause: thrown })
  }
}
