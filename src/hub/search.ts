/** Searches the hub: repositories by words, and the models of one, under the names that `pull` takes. */
import { SkeinError } from '../errors.ts'
import { hasCheckpointSuffix } from '../files/checkpoint-suffix.ts'
import { type Hub, listFiles, readJson } from './hub.ts'
import { parseModelName } from './model-names.ts'
import { directoryModel } from './pull.ts'

interface HubRepository {
  /** owner/name */
  readonly name: string
  readonly downloads: number
  readonly likes: number
  /** Readers must ask the owner for access first. */
  readonly isGated: boolean
}

interface HubModel {
  /** In the form that `pull` takes. */
  readonly name: string
  /** Name shown within the repository; '': the repository is one model. */
  readonly file: string
  readonly bytes: number
}

const MOST_FOUND = 20

/** Most downloaded first. */
export async function searchHub(hub: Hub, words: string): Promise<HubRepository[]> {
  const query = new URLSearchParams({ search: words, sort: 'downloads', direction: '-1', limit: String(MOST_FOUND) })
  const found = await readJson(hub, `api/models?${query}`)
  if (!Array.isArray(found)) throw new SkeinError('unsupported_weights', `${hub.endpoint.host} answered with no list`)
  return found.slice(0, MOST_FOUND).flatMap((one: unknown) => repositoryOf(one))
}

/** Leaves out entries of unexpected shape. */
function repositoryOf(entry: unknown): HubRepository[] {
  const { id, downloads, likes, gated } = (entry ?? {}) as Readonly<Record<string, unknown>>
  if (typeof id !== 'string' || !isName(id)) return []
  const isGated = gated !== undefined && gated !== false
  return [{ name: id, downloads: countOf(downloads), likes: countOf(likes), isGated }]
}

function isName(id: string): boolean {
  try {
    return parseModelName(id).choose === undefined
  } catch {
    return false
  }
}

function countOf(value: unknown): number {
  return typeof value === 'number' && value >= 0 ? value : 0
}

/** Each file that `pull` could fetch, largest last; a transformers directory is one model. */
export async function modelsOf(hub: Hub, name: string): Promise<HubModel[]> {
  const { repository } = parseModelName(name)
  const files = await listFiles(hub, repository)
  const whole = directoryModel(files)
  if (whole !== null) {
    const bytes = whole.reduce((sum, { size }) => sum + size, 0)
    return [{ name: repository, file: '', bytes }]
  }
  return files
    .filter(({ path }) => hasCheckpointSuffix(path))
    .map(({ path, size }) => ({ name: `${repository}:${path}`, file: path, bytes: size }))
    .sort((a, b) => a.bytes - b.bytes)
}
