/**
 * A checkpoint as the rest of the program sees it, whatever its file format: named tensors whose bytes are read when
 * asked for, so that loading never holds a second copy of the weights. Every format fills this interface under the
 * native RWKV names. Knows nothing of architectures.
 */
import { existsSync } from 'node:fs'
import { SkeinError } from '../errors.ts'
import { CHECKPOINT_SUFFIXES } from '../files/checkpoint-suffix.ts'
import type { Checkpoint } from './formats/format.ts'
import { openHuggingFace } from './formats/hugging-face.ts'
import { withNativeNames } from './formats/native-names.ts'
import { openFile, statIfThere } from './formats/open-file.ts'
import { openSource, unreadable } from './formats/open-source.ts'
import { recogniseFormat } from './formats/recognise.ts'

/** A file recognised by content, not by name (`path` may lack its suffix), or a Hugging Face directory. */
export function openCheckpoint(path: string): Checkpoint {
  const found = existingPath(path)
  return found.isDirectory ? openFolder(found.path) : openSource(openFile(found.path))
}

function openFolder(path: string): Checkpoint {
  const checkpoint = openHuggingFace(path)
  try {
    return withNativeNames(checkpoint)
  } catch (error) {
    checkpoint.close()
    throw error
  }
}

/** Whether there is something at the path that openCheckpoint would try to read. */
export function existsCheckpoint(path: string): boolean {
  return ['', ...CHECKPOINT_SUFFIXES].some((suffix) => existsSync(`${path}${suffix}`))
}

/** Whether the path is a GGUF file, by its first bytes. */
export function isGguf(path: string): boolean {
  if (!statIfThere(path)?.isFile()) return false
  const source = openFile(path)
  try {
    return recogniseFormat(source).readable === 'gguf'
  } finally {
    source.close()
  }
}

/** Only a regular file or a directory is opened: a pipe or a device could block for ever. */
function existingPath(path: string): { readonly path: string; readonly isDirectory: boolean } {
  for (const suffix of ['', ...CHECKPOINT_SUFFIXES]) {
    const candidate = `${path}${suffix}`
    const stats = statIfThere(candidate)
    if (!stats) continue
    if (!stats.isFile() && !stats.isDirectory()) throw unreadable(candidate, { found: 'a device' })
    return { path: candidate, isDirectory: stats.isDirectory() }
  }
  const message = `${path}: no such file, with or without ${CHECKPOINT_SUFFIXES.join(', ')}; check the path`
  throw new SkeinError('not_found', message)
}
