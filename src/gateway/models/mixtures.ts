/**
 * Named mixtures of start states: `model name` (or `model@name`) draws from several states of the model at once. The
 * states are ordinary start states of the model, named `name 1`, `name 2`, …; here are only their names and weights. It
 * knows nothing of files and of how a mixture is computed.
 */

import {
  type Mixture,
  type MixtureAdmin,
  type MixtureChoice,
  type ModelAdmin,
  type ModelEntry,
  type ModelRegistry,
  type ServedModel,
  type StartStatesChoice,
  weighted,
} from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import { SkeinError } from '../../errors.ts'
import { wrapClient } from '../routing/wrap-client.ts'

/** The mixtures of each model, by name. */
export type KnownMixtures = Map<string, Map<string, Mixture>>

export class Mixtures {
  readonly #models: ModelRegistry
  readonly #known: KnownMixtures

  constructor(models: ModelRegistry, known: KnownMixtures) {
    this.#models = models
    this.#known = known
  }

  /** The same models, with each mixture as a further model. */
  get registry(): ModelRegistry {
    return {
      list: () => this.#models.list().map((entry) => this.#withNames(entry)),
      get: (name) => this.#find(name) ?? this.#models.get(name),
    }
  }

  /** Passes changes of models on, and forgets mixtures that they end. */
  admin(models: ModelAdmin): ModelAdmin & MixtureAdmin {
    return {
      load: async (choice) => {
        const isOther = await models.load(choice)
        if (isOther) this.#known.delete(choice.id)
        return isOther
      },
      remove: async (id) => {
        await models.remove(id)
        if (id === null) this.#known.clear()
        else this.#known.delete(id)
      },
      addStartStates: (choice) => this.#addStates(choice, models),
      removeStartStates: async () => {
        await models.removeStartStates()
        this.#known.clear()
      },
      addMixture: (choice) => this.#add(choice, models),
      setMixtureWeights: async (model, name, weights) => this.#setWeights(model, name, weights),
    }
  }

  /** A start state replaces a mixture of the same name. */
  async #addStates(choice: StartStatesChoice, models: ModelAdmin): Promise<void> {
    const all = this.#models.list()
    const id = choice.model ?? (all.length === 1 ? all[0]!.id : '')
    const names = choice.states.map(({ name }) => name)
    this.#refuseParts(id, names)
    const ofModel = this.#known.get(id)
    const instead = names.flatMap((name) => partsOf(ofModel?.get(name)))
    await models.addStartStates({ ...choice, instead: [...(choice.instead ?? []), ...instead] })
    for (const name of names) ofModel?.delete(name)
  }

  async #add(choice: MixtureChoice, models: ModelAdmin): Promise<void> {
    const { files, withOriginal, weights, name, defaults, param } = choice
    const { id, client } = this.#models.get(choice.model)
    const named = files.map((file, i) => ({ name: `${name} ${i + 1}`, file }))
    const parts = named.map((state) => state.name)
    const all = [...parts, ...(withOriginal ? [null] : [])]
    // Checked before any file is read.
    const states = weighted(all, weights ?? all.map(() => 1), 'state_gatingweight')
    checkRoom(states.length, client, param)
    const ofModel = this.#known.get(id) ?? new Map<string, Mixture>()
    const replaced = partsOf(ofModel.get(name))
    this.#refuseParts(id, [name])
    const others = [...(client.info.startStates ?? []), ...ofModel.keys()]
    refuse(parts.find((part) => others.includes(part) && !replaced.includes(part)))
    const instead = [name, ...replaced].filter((startState) => !parts.includes(startState))
    await models.addStartStates({ model: id, states: named, instead, param })
    this.#known.set(id, ofModel.set(name, { states, defaults }))
  }

  /** Refuses start states that a mixture uses, because replacing or removing one would change its answers. */
  #refuseParts(id: string, names: readonly string[]): void {
    const entry = this.#models.list().find((model) => model.id === id)
    const states = entry?.client?.info.startStates
    const mixtures = [...(this.#known.get(id)?.values() ?? [])]
    const there = mixtures.filter((mixture) => states === undefined || isThere(mixture, states))
    const parts = there.flatMap(partsOf)
    refuse(names.find((name) => parts.includes(name)))
  }

  #setWeights(model: string | null, name: string, weights: readonly number[]): void {
    const { id } = this.#models.get(model)
    const ofModel = this.#known.get(id)
    const known = ofModel?.get(name)
    if (known === undefined) {
      const message = 'the model has no mixture of that name; GET /models lists the names'
      throw new SkeinError('not_found', message, { param: 'state_viewname' })
    }
    const states = known.states.map(({ startState }) => startState)
    ofModel!.set(name, { ...known, states: weighted(states, weights, 'state_gatingweight') })
  }

  /**
   * Lists mixtures whose states all exist: the model may have been replaced without the gateway's mixtures being told.
   */
  #withNames(entry: ModelEntry): ModelEntry {
    const states = entry.client?.info.startStates ?? []
    const known = [...(this.#known.get(entry.id) ?? [])]
    const names = known.filter(([, mixture]) => isThere(mixture, states)).map(([name]) => name)
    return names.length === 0 ? entry : { ...entry, mixtures: names }
  }

  /** Null if it is not the name of a mixture. */
  #find(name: string | null | undefined): ServedModel | null {
    if (!name) return null
    for (const [id, ofModel] of this.#known) {
      const rest = name.startsWith(id) ? name.slice(id.length) : ''
      const mixture = rest[0] === ' ' || rest[0] === '@' ? ofModel.get(rest.slice(1)) : undefined
      // A model's own name takes precedence over a mixture of another.
      if (mixture === undefined || !this.#isServed(id) || this.#isServed(name)) continue
      const model = this.#models.get(id)
      if (isThere(mixture, model.client.info.startStates ?? [])) return withMixture(model, name, mixture)
    }
    return null
  }

  #isServed(id: string): boolean {
    return this.#models.list().some((model) => model.id === id)
  }
}

function partsOf(mixture: Mixture | undefined): string[] {
  return mixture?.states.flatMap(({ startState }) => startState ?? []) ?? []
}

function refuse(taken: string | undefined): void {
  if (taken === undefined) return
  const message = `state_viewname: there is a start state or mixture "${taken}", which this would change; choose another name`
  throw new SkeinError('conflict', message, { param: 'state_viewname' })
}

/** A mixture with more states than fit would have every request refused. */
function checkRoom(numStates: number, { info }: EngineClient, param: string): void {
  if (numStates <= info.numSlots) return
  const message = `${param}: a mixture of ${numStates} states takes as many slots, and the model has ${info.numSlots}; load it with more (--slots)`
  throw new SkeinError('too_large', message, { param })
}

function isThere({ states }: Mixture, startStates: readonly string[]): boolean {
  return states.every(({ startState }) => startState === null || startStates.includes(startState))
}

/** A request may give its own weights. */
function withMixture(model: ServedModel, id: string, mixture: Mixture): ServedModel {
  const generate: EngineClient['generate'] = (request, signal) =>
    model.client.generate({ mixture: mixture.states, ...request }, signal)
  return { ...wrapClient(model, { generate }), id, mixture }
}
