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
 * read and write until it returns; longer only if the caller keeps the array and does not transfer it. `string` is NUL-terminated UTF-8, `strings` an array of them.
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
  | 'strings'

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
  strings: 'const char **',
}

/** Memory for the time of one call, or as long as the caller keeps it. */
export type Memory =
  | Pointer
  | Float32Array
  | Float64Array
  | Int32Array
  | Uint32Array
  | Uint8Array
  | BigUint64Array
  | null

/** name → result and arguments of a C function. */
export type Signatures = Readonly<Record<string, readonly [NativeType, readonly NativeType[]]>>

type Integer64 = 'int64' | 'uint64'
type Argument<T extends NativeType> = T extends 'pointer'
  ? Memory
  : T extends 'string'
    ? string
    : T extends 'strings'
      ? readonly string[]
      : T extends Integer64
        ? number | bigint
        : number
type Result<T extends NativeType> = T extends 'pointer'
  ? Pointer | null
  : T extends 'string'
    ? string
    : T extends 'void'
      ? undefined
      : number
type Arguments<T extends readonly NativeType[]> = { -readonly [K in keyof T]: Argument<T[K]> }

/** The functions of a table of signatures, by name. A 64 bit result beyond 2⁵³ does not occur in what we bind. */
export type Bound<S extends Signatures> = {
  readonly [K in keyof S]: (...args: Arguments<S[K][1]>) => Result<S[K][0]>
}

/** Binds every function of the table; a library that lacks one is refused by that name. */
export function bindAll<S extends Signatures>(library: NativeLibrary, signatures: S): Bound<S> {
  const entries = Object.entries(signatures).map(([name, [result, args]]) => {
    if (!library.has(name)) throw new SkeinError('backend_unavailable', `${library.path} has no function ${name}`)
    return [name, library.bind(name, result, args)]
  })
  // Each entry was bound with the signature that the type of Bound is made from.
  return Object.fromEntries(entries) as Bound<S>
}

export interface NativeLibrary {
  readonly path: string
  /** Binds one function; its TypeScript type is the caller's word. */
  bind<F extends (...args: never[]) => unknown>(name: string, result: NativeType, args: readonly NativeType[]): F
  has(name: string): boolean
}

/** Opens a shared library by path or by the name the system's loader knows. */
export function openLibrary(path: string): NativeLibrary {
  const library = load(path)
  return {
    path,
    bind<F extends (...args: never[]) => unknown>(name: string, result: NativeType, args: readonly NativeType[]): F {
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

/** Memory outside the garbage collector's reach, not cleared, at an address that does not move. */
export function allocateMemory(bytes: number): Pointer {
  // koffi 3 hands out pointers as bigint; its types still say any.
  return koffi.alloc('uint8_t', bytes) as Pointer
}

export function freeMemory(address: Pointer): void {
  koffi.free(address)
}

/** The NUL-terminated UTF-8 text at an address. */
export function readString(address: Pointer): string {
  return koffi.decode.string(address)
}

/** A function of koffi that can also run on another thread of the process. */
interface MemoryCopy {
  async(to: Memory, from: Memory, bytes: number, done: (error: unknown) => void): void
}

let memcpy: MemoryCopy | null = null

/** Copies `bytes` bytes on another thread and then calls back. The caller keeps both memories until then. */
export function copyMemoryAside(to: Memory, from: Memory, bytes: number, done: (error: unknown) => void): void {
  // The C library's, which is in the process already. Its type says nothing of `async`, which every koffi function has.
  memcpy ??= koffi.load(null).func('memcpy', 'void *', ['void *', 'void *', 'size_t']) as never
  memcpy!.async(to, from, bytes, done)
}
