/** The files of kernels/webgpu, by Node. A bundle's are in src/browser/platform/kernel-files.ts. */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { SkeinError } from '../../errors.ts'

/** In the same place seen from src/backend/webgpu and from dist/backend/webgpu. */
const FOLDER = fileURLToPath(new URL('../../../kernels/webgpu', import.meta.url))

export function readKernelFile(name: string): string {
  const path = join(FOLDER, name)
  if (existsSync(path)) return readFileSync(path, 'utf8')
  throw new SkeinError('backend_unavailable', `kernel source ${path} is missing; reinstall Skein`)
}
