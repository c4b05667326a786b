/** The worker form's fields, all as text, and the request body, which contains only the filled ones. */
import type { WorkerSpec } from '../../../src/gateway/contract.ts'

export const EMPTY_FORM = {
  model_path: '',
  model_name: '',
  device: '',
  quant: '',
  max_batch_size: '',
  max_prefill_batch: '',
  prefill_chunk_size: '',
  max_queue_size: '',
  threads: '',
  port: '',
  host: '',
  aliases: '',
  tokenizer_path: '',
  pp_devices: '',
  wkv: '',
  tool_template: '',
  speculate: '',
  draft_path: '',
  use_cuda_graph: '',
  states: '',
}

/** Every field by its name in `WorkerSpec`. */
export type Form = Readonly<Record<keyof typeof EMPTY_FORM, string>>

const NUMBERS = [
  'max_batch_size',
  'max_prefill_batch',
  'prefill_chunk_size',
  'max_queue_size',
  'threads',
  'port',
] as const
const STRINGS = [
  ...(['model_name', 'device', 'quant', 'host', 'tokenizer_path', 'wkv'] as const),
  ...(['tool_template', 'speculate', 'draft_path'] as const),
] as const

export function specOf(form: Form): Partial<WorkerSpec> {
  const spec: Record<string, unknown> = { model_path: form.model_path.trim() }
  for (const name of STRINGS) if (form[name].trim() !== '') spec[name] = form[name].trim()
  for (const name of NUMBERS) if (form[name].trim() !== '') spec[name] = numberOf(form[name])
  const aliases = list(form.aliases)
  const devices = list(form.pp_devices).map(numberOf)
  const states = form.states
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map(stateOf)
  if (aliases.length > 0) spec.aliases = aliases
  if (devices.length > 0) spec.pp_devices = devices
  if (states.length > 0) spec.states = states
  if (form.use_cuda_graph !== '') spec.use_cuda_graph = form.use_cuda_graph === 'true'
  // The server checks every value and names the wrong field.
  return spec as Partial<WorkerSpec>
}

/** Keeps text that is not a number; the server refuses it and names the field. */
function numberOf(text: string): number | string {
  const value = Number(text.trim())
  return Number.isFinite(value) ? value : text
}

function list(text: string): string[] {
  return text
    .split(/[,\s]+/)
    .map((part) => part.trim())
    .filter((part) => part !== '')
}

function stateOf(line: string): { name: string; path: string } {
  const at = line.indexOf('=')
  if (at < 0) return { name: '', path: line.trim() }
  return { name: line.slice(0, at).trim(), path: line.slice(at + 1).trim() }
}
