/**
 * The tuned start states that requests may begin with, by name. Each gets an id that no later state of the same name
 * has: cached prefixes are kept under it.
 */
import { SkeinError } from '../../errors.ts'
import type { StateData } from '../../model/runner.ts'
import type { CallHandlers, EngineCalls } from '../messages.ts'
import type { LiveRequest } from '../sequence.ts'
import type { Start } from './start.ts'

/** No "@", which stands before it in `model@state`, and no control characters; spaces only inside ("State Test"). */
const NAME = /^(?! )[^@\p{C}]{1,64}(?<! )$/u

export class StartStates {
  /** Reads a file on another thread; null where states cannot be added by path. */
  readFile: ((path: string) => Promise<StateData>) | null = null
  readonly #states = new Map<string, { readonly id: string; readonly state: StateData }>()
  readonly #names: string[] = []
  #numAdded = 0

  /** In order of arrival. */
  get names(): readonly string[] {
    return this.#names
  }

  get calls(): Pick<CallHandlers, 'startStates.add' | 'startStates.remove'> {
    return {
      'startStates.add': (params) => this.#addFile(params),
      'startStates.remove': ({ name }) => this.#remove(name),
    }
  }

  add(name: string, state: StateData): void {
    this.#refuseBadName(name)
    this.#refuseTakenName(name)
    this.#numAdded++
    this.#states.set(name, { id: `${name} ${this.#numAdded}`, state })
    this.#names.push(name)
  }

  /** Sets the state, the states or no state that a request begins with. Throws not_found. */
  begin(live: LiveRequest): void {
    const { startState = null, mixture } = live.request
    const [own, ...others] = mixture ?? [{ startState, weight: 1 }]
    live.start = this.#startOf(own!.startState)
    if (others.length === 0) return
    live.mixture = {
      weight: own!.weight,
      others: others.map(({ startState, weight }) => ({ start: this.#startOf(startState), weight })),
    }
  }

  #startOf(name: string | null): Start | null {
    if (name === null) return null
    const found = this.#states.get(name)
    if (found === undefined) throw this.#unknown('startState')
    const { id, state } = found
    return { id, numTokens: 0, take: () => state }
  }

  async #addFile({
    name,
    path,
    replace = false,
  }: EngineCalls['startStates.add']['params']): Promise<readonly string[]> {
    // Checked before the file is read; another state of that name may arrive while it is read.
    this.#refuseBadName(name)
    if (!replace) this.#refuseTakenName(name)
    if (this.readFile === null) throw new SkeinError('invalid_request', 'this engine takes no start states from files')
    const state = await this.readFile(path)
    if (replace) this.#forget(name)
    this.add(name, state)
    return [...this.#names]
  }

  #remove(name: string): readonly string[] {
    if (!this.#states.has(name)) throw this.#unknown('name')
    this.#forget(name)
    return [...this.#names]
  }

  #forget(name: string): void {
    if (this.#states.delete(name)) this.#names.splice(this.#names.indexOf(name), 1)
  }

  #refuseBadName(name: string): void {
    if (NAME.test(name)) return
    const message = `"${name}" cannot name a start state; use up to 64 characters other than "@", and no space at either end`
    throw new SkeinError('invalid_request', message)
  }

  #refuseTakenName(name: string): void {
    if (!this.#states.has(name)) return
    throw new SkeinError('conflict', `there is a start state "${name}" already; choose another name`)
  }

  #unknown(param: string): SkeinError {
    const known = this.#names.length === 0 ? 'none is loaded' : `loaded: ${this.#names.join(', ')}`
    return new SkeinError('not_found', `no start state of that name; ${known}`, { param })
  }
}
