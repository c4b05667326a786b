/**
 * Suffixes of checkpoint files. A file's format is recognised by its first bytes (model/formats/recognise.ts), never by
 * its name.
 */
export const CHECKPOINT_SUFFIXES = ['.pth', '.safetensors', '.st', '.gguf'] as const

const SUFFIX = /\.(pth|safetensors|st|gguf)$/i

export function hasCheckpointSuffix(name: string): boolean {
  return SUFFIX.test(name)
}

export function withoutCheckpointSuffix(name: string): string {
  return name.replace(SUFFIX, '')
}
