/** The bundled version of src/backend/webgpu/kernel-files.ts: the files of kernels/webgpu as text. */
import { SkeinError } from '../../errors.ts'

declare global {
  interface ImportMeta {
    /** Vite inserts the matching files when it makes the bundle. */
    glob(
      pattern: string,
      options: { readonly query: '?raw'; readonly import: 'default'; readonly eager: true },
    ): Readonly<Record<string, string>>
  }
}

const FOLDER = '../../../kernels/webgpu/'
const FILES = import.meta.glob('../../../kernels/webgpu/*.wgsl', { query: '?raw', import: 'default', eager: true })

export function readKernelFile(name: string): string {
  const text = FILES[`${FOLDER}${name}`]
  if (text !== undefined) return text
  throw new SkeinError('backend_unavailable', `the kernel ${name} is not in this bundle`)
}
