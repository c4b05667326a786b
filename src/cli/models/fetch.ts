/** Models that a command names and that are not here yet: fetched, or offered to be. */
import { existsSync } from 'node:fs'
import { createInterface } from 'node:readline/promises'
import { DEMO_NAME } from '../../host/load.ts'
import { findModel, modelsFolder } from '../../hub/model-cache.ts'
import { findModelName } from '../../hub/model-names.ts'
import { pullAll } from './pull.ts'

/** Neither a file nor pulled, but a name that the hub may have. */
function isMissing(model: string): boolean {
  if (model === DEMO_NAME || existsSync(model)) return false
  return findModel(modelsFolder(), model) === undefined && findModelName(model) !== undefined
}

export async function fetchMissing(model: string): Promise<void> {
  if (isMissing(model)) await pullAll(model)
}

/** Asks on a terminal; elsewhere whoever needs the model says how to get it. Words are FILE, or NAME=FILE. */
export async function offerMissing(words: readonly string[]): Promise<void> {
  if (process.stdin.isTTY !== true || process.stderr.isTTY !== true) return
  for (const word of words) {
    const model = word.replace(/^[^=/\\@]+=/, '')
    if (isMissing(model) && (await isWanted(model))) await pullAll(model)
  }
}

async function isWanted(model: string): Promise<boolean> {
  const lines = createInterface({ input: process.stdin, output: process.stderr })
  try {
    const answer = await lines.question(`${model} is not here yet. Fetch it now? [Y/n] `)
    return /^(y|yes)?$/i.test(answer.trim())
  } finally {
    lines.close()
  }
}
