/** Kernel sources: the .wgsl files of kernels/webgpu with what they include. */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { SkeinError } from '../../errors.ts'

/** kernels/webgpu is in the same place seen from src/backend/webgpu and from dist/backend/webgpu. */
const FOLDER = join(import.meta.dirname, '../../../kernels/webgpu')

/**
 * A file with its includes: `#include "name.wgsl"`, or `#include NAME` for a file that the variant chooses.
 */
export function readSource(file: string, variant: Readonly<Record<string, string>> = {}): string {
  return expand(`${file}.wgsl`, variant, new Set())
}

function expand(
  name: string,
  variant: Readonly<Record<string, string>>,
  done: Set<string>,
): string {
  done.add(name)
  const path = join(FOLDER, name)
  if (!existsSync(path))
    throw new SkeinError('backend_unavailable', `kernel source ${path} is missing; reinstall Skein`)
  return readFileSync(path, 'utf8').replace(
    /^#include (?:"([^"]+)"|(\w+))$/gm,
    (_, quoted: string | undefined, chosen: string | undefined) => {
      const included = quoted ?? `${variant[chosen!]}.wgsl`
      return done.has(included) ? '' : expand(included, variant, done)
    },
  )
}
