/** Downloads models that a command names and that are missing here, or offers to. */
import { existsSync, writeFileSync } from 'node:fs'
import { totalmem } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline/promises'
import { makeFolder } from '../../files/make-folder.ts'
import { closestModel, DEMO_NAME } from '../../host/checkpoints/model-path.ts'
import { type Hub, impatientHub, isOffline, licenceOf, listFiles } from '../../hub/hub.ts'
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

/**
 * Offers the download on a terminal; elsewhere the model's loader reports how to get it. Words are FILE or NAME=FILE.
 */
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

/** File in the folder of pulled models: the user declined, and is not asked again. */
const DECLINED = '.first-model-declined'
/** A start waits no longer than this for the hub. */
const HUB_MS = 3000

/**
 * The name of a model to download for a server that would otherwise serve the demo model. Null if the user declines or
 * declined before, or if the hub cannot be reached; then the demo model is served.
 */
export async function offerFirst(given?: FirstOffer): Promise<string | null> {
  if (given === undefined && (!isTerminal() || isOffline())) return null
  const environment = given?.environment ?? process.env
  const folder = modelsFolder(environment)
  const declined = join(folder, DECLINED)
  if (listModels(folder).length > 0 || existsSync(declined)) return null
  const { hub, memoryBytes, ask } = given ?? { hub: impatientHub(HUB_MS), memoryBytes: totalmem(), ask: askOnTerminal }
  const model = await firstModel(hub, memoryBytes).catch(() => null)
  if (model === null) return null
  if (isYes(await ask(offerOf(model)))) return model.name
  makeFolder(folder)
  writeFileSync(declined, '')
  return null
}

function offerOf({ name, file, bytes, licence }: FirstModel): string {
  return `No model has been fetched yet; the demo model only knows capitals and small sums.
${name} fits this machine: ${file}, ${formatBytes(bytes)} (about ${minutesToFetch(bytes)} min at ${LINE_SPEED} Mbit/s), licence ${licence ?? 'unknown'}.
Fetch and serve it now? Answer n to serve the demo model; it will not ask again. [Y/n] `
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
  /** As `pull` and `serve` take it. */
  readonly name: string
  readonly file: string
  readonly bytes: number
  /** As the hub names it, such as "apache-2.0"; null if it does not say. */
  readonly licence: string | null
}

const REPOSITORY = 'BlinkDL/rwkv7-g1'

/** Null if none of them exists or fits. Throws if the hub cannot be reached. */
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
