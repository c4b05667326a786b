/**
 * Native libraries through koffi: opening one and binding its functions. The only file that imports koffi, so that
 * another FFI could take its place. Knows no function of any library.
 */
import koffi, { type LibraryHandle } from 'koffi'
import { SkeinError } from '../errors.ts'

/** An address; null is the null pointer. */
export type Pointer = bigint

/**
 * Types of arguments and results. `pointer` takes an address, null, or a typed array whose memory the function may
 * read and write until it returns, not longer. `string` is NUL-terminated UTF-8.
 */
export type NativeType =
  | 'void'
  | 'int32'
  | 'uint32'
  | 'int64'
  | 'uint64'
  | 'float'
  | 'double'
  | 'pointer'
  | 'string'

const KOFFI_TYPES: Readonly<Record<NativeType, string>> = {
  void: 'void',
  int32: 'int32_t',
  uint32: 'uint32_t',
  int64: 'int64_t',
  uint64: 'uint64_t',
  float: 'float',
  double: 'double',
  pointer: 'void *',
  string: 'const char *',
}

export interface NativeLibrary {
  readonly path: string
  /** Binds one function; its TypeScript type is the caller's word. */
  bind<F extends (...args: never[]) => unknown>(
    name: string,
    result: NativeType,
    args: readonly NativeType[],
  ): F
  /** Whether the library exports the name. */
  has(name: string): boolean
}

/** Opens a shared library by path or by the name the system's loader knows. */
export function openLibrary(path: string): NativeLibrary {
  const library = load(path)
  return {
    path,
    bind<F extends (...args: never[]) => unknown>(
      name: string,
      result: NativeType,
      args: readonly NativeType[],
    ): F {
      const types = args.map((type) => KOFFI_TYPES[type])
      // The caller declares the C signature twice, as native types and as F; nothing can check that they agree.
      return library.func(name, KOFFI_TYPES[result], types) as unknown as F
    },
    has(name: string): boolean {
      try {
        library.symbol(name)
        return true
      } catch {
        return false
      }
    },
  }
}

function load(path: string): LibraryHandle {
  try {
    return koffi.load(path)
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new SkeinError('backend_unavailable', `cannot load ${path}: ${reason}`, { cause })
  }
}

/** The memory at an address as an ArrayBuffer, without a copy; valid as long as that memory is. */
export function viewMemory(address: Pointer, bytes: number): ArrayBuffer {
  return koffi.view(address, bytes)
}
