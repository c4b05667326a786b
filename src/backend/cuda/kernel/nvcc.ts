/** nvcc, used where there is no NVRTC: one process per kernel file. Knows no kernel and no cache. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { SkeinError } from '../../../errors.ts'
import type { CudaCompiler } from './cuda-target.ts'
import type { CompilerInput } from './target.ts'

export function openNvcc(path: string): CudaCompiler {
  const version = run(path, ['--version'])
  const release = /release ([\d.]+), (V[\d.]+)/.exec(version.output)
  if (version.status !== 0 || release === null)
    throw new SkeinError('backend_unavailable', `${path} --version failed: ${version.output}`)
  return {
    description: `nvcc ${release[2]}`,
    path,
    capabilities: capabilitiesOf(path),
    compile: (input) => compile(path, input),
  }
}

/** "sm_75 …" or "compute_75 …", one a line. */
function capabilitiesOf(path: string): number[] {
  const { output } = run(path, ['--list-gpu-arch'])
  return [...output.matchAll(/compute_(\d+)\b/g)].map(([, number]) => Number(number))
}

function compile(path: string, { source, target, options }: CompilerInput): Uint8Array {
  const folder = mkdtempSync(join(tmpdir(), 'skein-nvcc-'))
  try {
    const image = join(folder, 'image')
    const result = run(path, [...nvccFlags(target), ...options, '-o', image, source.path])
    if (result.status !== 0)
      throw new SkeinError(
        'backend_unavailable',
        `nvcc cannot compile ${source.path} for ${target.name}:\n${result.output}`,
      )
    const bytes = readFileSync(image)
    // The driver takes PTX as a C string.
    return target.kind === 'ptx' ? Buffer.concat([bytes, Uint8Array.of(0)]) : bytes
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** A shorthand -arch=sm_90a would also run a pass for plain sm_90, which lacks the instructions. */
export function nvccFlags({ name, kind }: CompilerInput['target']): string[] {
  const virtual = name.replace('sm_', 'compute_')
  return [`-${kind}`, `-gencode=arch=${virtual},code=${kind === 'cubin' ? name : virtual}`]
}

function run(path: string, args: readonly string[]): { status: number; output: string } {
  const { status, stdout, stderr, error } = spawnSync(path, args, { encoding: 'utf8' })
  return { status: status ?? -1, output: error?.message ?? `${stdout}${stderr}` }
}
