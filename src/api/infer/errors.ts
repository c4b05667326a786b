/** The error of RWKV-Infer's routes: FastAPI's. What a file made fail is its 500, whatever was wrong with the file. */
import type { SkeinError } from '../../errors.ts'

export function renderDetail(error: SkeinError): object {
  return { detail: error.message }
}

export function statusOf({ code }: SkeinError): number | undefined {
  const isFile = code === 'unsupported_weights' || code === 'corrupt_weights'
  return isFile || code === 'state_incompatible' ? 500 : undefined
}
