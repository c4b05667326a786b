/**
 * The tuned start states that requests may begin with, by name. A name keeps its state for as long as the engine lives,
 * since cached prefixes are kept under it. Knows nothing of files.
 */
import { SkeinError } from '../errors.ts'
import type { Runner, StateData } from '../model/runner.ts'
import type { Start } from './sequence.ts'

/** Letters, digits, `.`, `_` and `-`: what can stand after `model@` without doubt where it begins. */
const NAME = /^[\w.-]{1,64}$/

export class StartStates {
  readonly #states = new Map<string, StateData>()
  readonly #names: string[] = []

  /** In the order in which they came; grows with them. */
  get names(): readonly string[] {
    return this.#names
  }

  add(name: string, state: StateData): void {
    if (!NAME.test(name)) {
      throw new SkeinError(
        'invalid_request',
        `"${name}" cannot name a start state; use up to 64 letters, digits, ".", "_" or "-"`,
      )
    }
    if (this.#states.has(name)) {
      throw new SkeinError(
        'conflict',
        `there is a start state "${name}" already; choose another name`,
      )
    }
    this.#states.set(name, state)
    this.#names.push(name)
  }

  /** How a request begins that asks for a state of that name, or for none. Throws not_found. */
  startOf(name: string | undefined, runner: Runner): Start | null {
    if (name === undefined) return null
    const state = this.#states.get(name)
    if (state === undefined) {
      const known =
        this.#names.length === 0 ? 'none is loaded' : `loaded: ${this.#names.join(', ')}`
      throw new SkeinError('not_found', `no start state of that name; ${known}`, {
        param: 'startState',
      })
    }
    return { numTokens: 0, place: (slot) => runner.writeState(slot, state) }
  }
}
