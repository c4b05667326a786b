/** The shape every file format is read into: named tensors whose bytes are read when asked for. Holds types only. */
import type { SourceType } from '../../backend/weight-types.ts'

export interface TensorEntry {
  readonly name: string
  readonly shape: readonly number[]
  /** The type that `read` returns. */
  readonly dtype: SourceType
  /**
   * How the file stores it where that is none of the types above: blocks of a few bits each, which `read` expands to
   * f32.
   */
  readonly packed?: { readonly type: string; readonly bytes: number }
  /**
   * Little-endian elements [start, end) in row-major order, at an address fit for their type. The view is valid until
   * the next read of any tensor of this checkpoint: all share one buffer.
   */
  read(start: number, end: number): Uint8Array
}

type CheckpointFormat = 'pth' | 'legacy-pth' | 'safetensors' | 'hugging-face' | 'gguf'

/** A token of the vocabulary that a checkpoint brings along. */
export interface CheckpointToken {
  readonly id: number
  readonly bytes: Uint8Array
}

export interface Checkpoint {
  readonly path: string
  readonly format: CheckpointFormat
  /** The project whose tensor names the file uses, if they are not RWKV's own. */
  readonly naming?: Naming
  readonly tensors: ReadonlyMap<string, TensorEntry>
  /** The file's own metadata. */
  readonly metadata?: ReadonlyMap<string, string | number | boolean>
  /** The vocabulary inside the file; absent where it has none. */
  readonly vocabulary?: () => readonly CheckpointToken[]
  readonly fileBytes: number
  close(): void
}

/** Product of the shape. Readers have checked that it is a safe integer and within the file. */
export function numElements(entry: { readonly shape: readonly number[] }): number {
  return entry.shape.reduce((product, size) => product * size, 1)
}

type Naming = 'native' | 'web-rwkv' | 'fla' | 'rwkv-emb' | 'llama.cpp'

export type ReadableFormat = 'zip' | 'legacy torch' | 'safetensors' | 'gguf'

export interface FileFormat {
  /** "a GGUF file" */
  readonly found: string
  /** Which of our readers takes it. */
  readonly readable?: ReadableFormat
  /** A remedy, where there is one. */
  readonly advice?: string
}
