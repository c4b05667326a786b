/** Models that a command names and that are not here yet: fetched, or offered to be. */
import { existsSync, writeFileSync } from 'node:fs'
import { totalmem } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline/promises'
import { makeFolder } from '../../files/make-folder.ts'
import { closestModel, DEMO_NAME } from '../../host/checkpoints/model-path.ts'
import { type Hub, isOffline, licenceOf, listFiles, openHub } from '../../hub/hub.ts'
import { findModel, listModels, modelsFolder } from '../../hub/model-cache.ts'
import { findModelName, newestNamed } from '../../hub/model-names.ts'
import { FIRST_NAMES, isSmallFor, LINE_SPEED, minutesToFetch } from '../../hub/released.ts'
import { formatBytes } from '../terminal/output.ts'
import { pullAll } from './pull.ts'

/** Neither a file nor pulled, but a name that the hub may have. */
function isMissing(model: string): boolean {
  if (model === DEMO_NAME || existsSync(model)) return false
  if (findModel(modelsFolder(), model) !== undefined || closestModel(model) !== null) return false
  return findModelName(model) !== undefined
}

export async function fetchMissing(model: string): Promise<void> {
  if (isMissing(model)) await pullAll(model)
}

/** Asks on a terminal; elsewhere whoever needs the model says how to get it. Words are FILE, or NAME=FILE. */
export async function offerMissing(words: readonly string[]): Promise<void> {
  if (!isTerminal()) return
  for (const word of words) {
    const model = word.replace(/^[^=/\\@]+=/, '')
    if (!isMissing(model)) continue
    const isWanted = isYes(await askOnTerminal(`${model} is not here yet. Fetch it now? [Y/n] `))
    if (isWanted) await pullAll(model)
  }
}

interface FirstOffer {
  readonly hub: Hub
  readonly memoryBytes: number
  readonly ask: (question: string) => Promise<string>
  readonly environment?: Readonly<Record<string, string | undefined>>
}

/** In the folder of pulled models: somebody said no, and is not asked again. */
const DECLINED = '.first-model-declined'
/** A start does not wait longer for the hub. */
const HUB_MS = 3000

/**
 * The name of a model to fetch, for whoever starts a server with the demo model for want of another. Null where it is not
 * wanted, was not wanted before, or the hub cannot be asked: the demo model is there without a network.
 */
export async function offerFirst(given?: FirstOffer): Promise<string | null> {
  if (given === undefined && (!isTerminal() || isOffline())) return null
  const environment = given?.environment ?? process.env
  const folder = modelsFolder(environment)
  const declined = join(folder, DECLINED)
  if (listModels(folder).length > 0 || existsSync(declined)) return null
  const { hub, memoryBytes, ask } = given ?? onThisMachine()
  const model = await firstModel(hub, memoryBytes).catch(() => null)
  if (model === null) return null
  if (isYes(await ask(offerOf(model)))) return model.name
  makeFolder(folder)
  writeFileSync(declined, '')
  return null
}

function onThisMachine(): FirstOffer {
  const hub = openHub()
  const impatient: typeof fetch = (url, init) => hub.fetch(url, { ...init, signal: AbortSignal.timeout(HUB_MS) })
  return {
    hub: { ...hub, fetch: impatient },
    memoryBytes: totalmem(),
    ask: askOnTerminal,
  }
}

function offerOf({ name, file, bytes, licence }: FirstModel): string {
  return `No model has been fetched yet; the demo model only knows capitals and small sums.
${name} fits this machine: ${file}, ${formatBytes(bytes)} (about ${minutesToFetch(bytes)} min at ${LINE_SPEED} Mbit/s), licence ${licence ?? 'unknown'}.
Fetch and serve it now? No serves the demo model, and is not asked again. [Y/n] `
}

function isTerminal(): boolean {
  return process.stdin.isTTY === true && process.stderr.isTTY === true
}

function isYes(answer: string): boolean {
  return /^(y|yes)?$/i.test(answer.trim())
}

async function askOnTerminal(question: string): Promise<string> {
  const lines = createInterface({ input: process.stdin, output: process.stderr })
  try {
    return await lines.question(question)
  } finally {
    lines.close()
  }
}

interface FirstModel {
  /** What `pull` and `serve` take. */
  readonly name: string
  readonly file: string
  readonly bytes: number
  /** As the hub names it: "apache-2.0"; null where it does not say. */
  readonly licence: string | null
}

const REPOSITORY = 'BlinkDL/rwkv7-g1'

/** Null where none of them is there or fits. Throws where the hub cannot be asked. */
export async function firstModel(hub: Hub, memoryBytes: number): Promise<FirstModel | null> {
  const files = await listFiles(hub, REPOSITORY)
  const paths = files.map(({ path }) => path)
  for (const name of FIRST_NAMES) {
    const path = newestNamed(name, paths)
    const file = files.find((one) => one.path === path)
    if (file === undefined || !isSmallFor(memoryBytes, file.size)) continue
    return { name, file: file.path, bytes: file.size, licence: await licenceOf(hub, REPOSITORY) }
  }
  return null
}
