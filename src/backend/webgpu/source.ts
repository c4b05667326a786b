/** Kernel sources: the .wgsl files of kernels/webgpu with what they include. */
import { readKernelFile } from './kernel-files.ts'

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
  return readKernelFile(name).replace(
    /^#include (?:"([^"]+)"|(\w+))$/gm,
    (_, quoted: string | undefined, chosen: string | undefined) => {
      const included = quoted ?? `${variant[chosen!]}.wgsl`
      return done.has(included) ? '' : expand(included, variant, done)
    },
  )
}
