/**
 * One native context: the thread pool, and the owner of every native object of a backend. What outlives it would
 * point into freed memory, so each use goes through here and is refused after dispose().
 */
import { assert } from '../../errors.ts'
import type { Pointer } from '../ffi.ts'
import { type IsaLevel, libraryPath } from './isa.ts'
import { check, checkPointer, type Native, openNative } from './native.ts'

export class CpuContext {
  readonly #native: Native
  #handle: Pointer | null

  constructor(level: IsaLevel, threads: number) {
    this.#native = openNative(libraryPath(level))
    this.#handle = checkPointer(this.#native, this.#native.sk_context_new(threads), 'thread pool')
  }

  /** The native functions, as long as their objects live. */
  get native(): Native {
    assert(this.#handle !== null, 'a cpu backend used after dispose()')
    return this.#native
  }

  get handle(): Pointer {
    assert(this.#handle !== null, 'a cpu backend used after dispose()')
    return this.#handle
  }

  check(status: number, what: string): void {
    check(this.#native, status, what)
  }

  checkPointer(pointer: Pointer | null, what: string): Pointer {
    return checkPointer(this.#native, pointer, what)
  }

  /** A program owns its own memory and may go before or after the rest. */
  freeProgram(program: Pointer): void {
    this.#native.sk_program_free(program)
  }

  dispose(): void {
    if (this.#handle === null) return
    this.#native.sk_context_free(this.#handle)
    this.#handle = null
  }
}
