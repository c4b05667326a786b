/**
 * One native context: the thread pool, and the owner of every native object of a backend. Objects that outlive it would
 * point into freed memory, so each use goes through here and is refused after dispose().
 */
import { assert, type ErrorCode, SkeinError } from '../../errors.ts'
import { type Bound, bindAll, type NativeType, openLibrary, type Pointer, type Signatures } from '../ffi.ts'
import { type IsaLevel, libraryPath } from './isa.ts'

/** Paths of the libraries that contexts of this process were opened from. */
const opened = new Set<string>()

export function openedLibraries(): readonly string[] {
  return [...opened]
}

export class CpuContext {
  readonly #native: Native
  #handle: Pointer | null
  readonly threads: number
  /** Finishes the step that was started last. */
  #finish: (() => void) | null = null

  constructor(level: IsaLevel, threads: number) {
    this.threads = threads
    const path = libraryPath(level)
    this.#native = openNative(path)
    opened.add(path)
    this.#handle = checkPointer(this.#native, this.#native.sk_context_new(threads), 'thread pool')
  }

  /** The native functions, as long as their objects live. A started step ends first. */
  get native(): Native {
    assert(this.#handle !== null, 'a cpu backend used after dispose()')
    this.#finish?.()
    return this.#native
  }

  /**
   * A step was started: its threads work on it, and any use of this context waits for it. Returns what waits for it, as
   * often as it is called: how a step ended is asked once. `memory`: what the step reads and writes until then.
   */
  started(program: Pointer, memory: unknown): () => void {
    let used: unknown = memory
    let error: unknown = null
    const finish = () => {
      if (used !== null) {
        this.#finish = null
        try {
          this.check(this.#native.sk_program_finish(program), 'step')
        } catch (problem) {
          error = problem
        }
        used = null
      }
      if (error !== null) throw error
    }
    this.#finish = finish
    return finish
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
    this.#settle()
    this.#native.sk_program_free(program)
  }

  dispose(): void {
    if (this.#handle === null) return
    this.#settle()
    this.#native.sk_context_free(this.#handle)
    this.#handle = null
  }

  /** Whatever became of the last step, no thread is in memory that goes. */
  #settle(): void {
    try {
      this.#finish?.()
    } catch {
      // Nobody asks for its results any more.
    }
  }
}

/** SK_ABI_VERSION of skein.h. */
const ABI_VERSION = 12

const I = 'int32'
const L = 'int64'
const F = 'float'
const P = 'pointer'

/** name → result and arguments, in the order of skein.h. */
const SIGNATURES = {
  sk_abi_version: [I, []],
  sk_last_status: [I, []],
  sk_last_error: ['string', []],
  sk_context_new: [P, [I]],
  sk_context_free: ['void', [P]],
  sk_tensor_new: [P, [P, L]],
  sk_tensor_write: ['void', [P, L, P, L]],
  sk_tensor_read: ['void', [P, L, P, L]],
  sk_matrix_new: [P, [P, L, L, I]],
  sk_matrix_pack: [I, [P, L, L, I, P]],
  sk_matrix_pack_quantised: [I, [P, L, L, P, P]],
  sk_matrix_pack_blocks: [I, [P, L, L, P]],
  sk_matrix_bytes: [L, [P]],
  sk_quantise: [I, [P, I, L, L, I, P, P, P]],
  sk_table_new: [P, [P, L, L, I]],
  sk_table_write: [I, [P, L, L, P]],
  sk_table_bytes: [L, [P]],
  sk_states_new: [P, [P, I, I, I, I, I]],
  sk_states_bytes_per_slot: [L, [P]],
  sk_states_clear: [I, [P, I]],
  sk_states_poison: [I, [P, I]],
  sk_states_copy: [I, [P, I, I]],
  sk_states_read: [I, [P, I, I, I, P, P]],
  sk_states_write: [I, [P, I, I, I, P, P]],
  sk_penalties_new: [P, [P, I, I]],
  sk_penalties_reset: [I, [P, I, P, I]],
  sk_program_new: [P, [P, I, I, I, I]],
  sk_program_free: ['void', [P]],
  sk_record_embed: [I, [P, P, P, P, P, F]],
  sk_record_shift_mix: [I, [P, I, P, P, P, P, F, P, P, I, I]],
  sk_record_linear: [I, [P, I, P, P, P, P, P]],
  sk_record_wkv7: [I, [P, P, P, P, P, P, P, P, P, P, P, P, P, P, P, F, P, I]],
  sk_record_ddlerp: [I, [P, I, P, P, P, P, I]],
  sk_record_wkv6: [I, [P, P, P, P, P, P, P, P, P, P, F, P, I]],
  sk_record_deep_embed: [I, [P, P, P, P, P, P, P, I, I]],
  sk_record_gated_add: [I, [P, P, P, P, I]],
  sk_record_gather_norm: [I, [P, P, P, I, P, P, F]],
  sk_record_logits: [I, [P, P, P, P]],
  sk_record_sample: [I, [P, P, P]],
  sk_program_run: [I, [P, I, I, I, I, I, I, ...new Array<NativeType>(18).fill(P)]],
  sk_program_finish: [I, [P]],
  sk_logprobs: [I, [P, L, I, P, I, P, P, P]],
  sk_bench_read: ['double', [P, L, I]],
  sk_bench_fma: ['double', [P, I]],
  sk_vector_function: ['void', [I, P, P, L]],
} as const satisfies Signatures

type Native = Bound<typeof SIGNATURES>

/** Binds a library built from this repository's kernels; one of another version is refused. */
export function openNative(path: string): Native {
  const library = openLibrary(path)
  const version = library.has('sk_abi_version') ? library.bind<() => number>('sk_abi_version', I, [])() : null
  if (version !== ABI_VERSION) {
    const found = version === null ? 'is not a Skein kernel library' : `has version ${version}`
    const message = `${path} ${found}, expected version ${ABI_VERSION}; run: npm run build:native`
    throw new SkeinError('backend_unavailable', message)
  }
  return bindAll(library, SIGNATURES)
}

const STATUS_CODES: Readonly<Record<number, ErrorCode>> = {
  1: 'internal',
  2: 'out_of_memory',
  3: 'kernel_failed',
  4: 'unsupported_weights',
}

/** The last failure of this thread as an error; `what` names the call and its object. */
function failure(native: Native, what: string): SkeinError {
  const code = STATUS_CODES[native.sk_last_status()] ?? 'internal'
  return new SkeinError(code, `cpu backend, ${what}: ${native.sk_last_error()}`)
}

/** Throws unless the status is SK_OK. */
export function check(native: Native, status: number, what: string): void {
  if (status !== 0) throw failure(native, what)
}

function checkPointer(native: Native, pointer: Pointer | null, what: string): Pointer {
  if (pointer === null) throw failure(native, what)
  return pointer
}
