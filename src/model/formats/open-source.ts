/**
 * A checkpoint from its bytes, wherever they are: recognised by content, not by name, and shown under RWKV's own names.
 * Knows no folders.
 */
import { SkeinError } from '../../errors.ts'
import type { ByteSource } from './byte-source.ts'
import type { Checkpoint, FileFormat, ReadableFormat } from './format.ts'
import { openGguf } from './gguf/checkpoint.ts'
import { withNativeNames } from './native-names.ts'
import { recogniseFormat } from './recognise.ts'
import { openSafetensors } from './safetensors/safetensors.ts'
import { openLegacyTorch } from './torch/legacy.ts'
import { openPth } from './torch/pth.ts'

const READERS: Readonly<Record<ReadableFormat, (source: ByteSource) => Checkpoint>> = {
  zip: openPth,
  'legacy torch': openLegacyTorch,
  safetensors: openSafetensors,
  gguf: openGguf,
}

/** Takes over the source, which is closed if this throws. */
export function openSource(source: ByteSource): Checkpoint {
  try {
    const format = recogniseFormat(source)
    if (format.readable) return withNativeNames(READERS[format.readable](source))
    throw unreadable(source.path, format)
  } catch (error) {
    source.close()
    throw error
  }
}

export function unreadable(path: string, format: Omit<FileFormat, 'readable'>): SkeinError {
  const advice = format.advice ?? 'give the .pth, .safetensors or .gguf file of an RWKV model'
  return new SkeinError('unsupported_weights', `${path} is ${format.found}; ${advice}`)
}
