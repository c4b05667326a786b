/**
 * The checkpoints that workers can be started with over HTTP: those in the model folder, pulled ones, and the demo
 * model. Clients can reach no other file.
 */
import { existsSync, realpathSync, statSync } from 'node:fs'
import { basename, resolve } from 'node:path'
import { SkeinError } from '../errors.ts'
import { hasCheckpointSuffix, withoutCheckpointSuffix } from '../files/checkpoint-suffix.ts'
import type { ModelFile, WorkerSpec } from '../gateway/contract.ts'
import { type Launch, launchOf } from '../gateway/fleet/launch.ts'
import type { ModelFolder } from '../gateway/models/model-folder.ts'
import { findModel, listModels, modelsFolder } from '../hub/model-cache.ts'
import { DEMO_MODEL, DEMO_NAME } from './checkpoints/model-path.ts'

export function listModelFiles(folder: ModelFolder): ModelFile[] {
  const own = folder
    .list((path) => hasCheckpointSuffix(path))
    .map(({ path, bytes, modifiedAt }): ModelFile => {
      return { path, bytes, modified_at: modifiedAt / 1000, source: 'folder' }
    })
  const pulled = listModels(modelsFolder())
    .filter(({ isPartial }) => !isPartial)
    .map(({ name, path, bytes }): ModelFile => {
      return { path: name, bytes, modified_at: statSync(path).mtimeMs / 1000, source: 'pulled' }
    })
  const all = [...own, ...pulled]
  const demo = statSync(DEMO_MODEL, { throwIfNoEntry: false })
  const isTaken = all.some(({ path }) => withoutCheckpointSuffix(path) === DEMO_NAME)
  if (demo === undefined || isTaken) return all
  const { size: bytes, mtimeMs } = demo
  return [...all, { path: DEMO_NAME, bytes, modified_at: mtimeMs / 1000, source: 'bundled' }]
}

/** Finds the files that a spec names. Throws not_found with the field of the missing one. */
export function resolveSpec(spec: WorkerSpec, folder: ModelFolder): Launch {
  const file = findFile(spec.model_path, folder, 'model_path')
  const { tokenizer_path, draft_path, states, model_name } = spec
  return launchOf(
    { ...spec, model_name: model_name ?? nameOf(spec.model_path) },
    {
      file,
      startStates: states.map(({ name, path }) => ({ name, path: folder.find(path, 'states') })),
      vocab: tokenizer_path === null ? null : folder.find(tokenizer_path, 'tokenizer_path'),
      draft: draft_path === null ? null : findFile(draft_path, folder, 'draft_path'),
    },
  )
}

function findFile(name: string, folder: ModelFolder, param: 'model_path' | 'draft_path'): string {
  try {
    return folder.find(name, param)
  } catch (thrown) {
    const pulled = findModel(modelsFolder(), name)
    if (pulled !== undefined) return pulled.path
    if (name === DEMO_NAME && existsSync(DEMO_MODEL)) return DEMO_MODEL
    if (SkeinError.from(thrown).code !== 'not_found') throw thrown
    const message = `${param}: no such checkpoint; GET /api/models lists those there are`
    throw new SkeinError('not_found', message, { param, cause: thrown })
  }
}

/** "models/demo.pth" is served as "demo". */
export function nameOf(model: string): string {
  return withoutCheckpointSuffix(basename(model))
}

/** The path without links if the file exists, with or without its extension. */
export function realPath(model: string): string {
  const found = [model, `${model}.pth`].find((path) => existsSync(path))
  return found === undefined ? resolve(model) : realpathSync(found)
}
