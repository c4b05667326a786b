/** Whether a model's files are still those that were read: they may be replaced, or written anew, under their names. */
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import type { Launch } from './launch.ts'

/** Another when any of the files is; what cannot be looked at is as good as absent. */
export function fileStamp({ file, adapters = [] }: Pick<Launch, 'file' | 'adapters'>): string {
  return [file, ...adapters.map(({ path }) => path)].map(stampOf).join('; ')
}

function stampOf(path: string): string {
  try {
    const found = statSync(path, { bigint: true })
    // A directory is one checkpoint.
    if (found.isDirectory())
      return readdirSync(path)
        .map((name) => stampOf(join(path, name)))
        .join(', ')
    return `${found.ino} ${found.size} ${found.mtimeNs}`
  } catch {
    return 'absent'
  }
}
