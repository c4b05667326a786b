/** The models of a cluster as a gateway lists them, from the reports of workers; the gateway itself has no engine. */
import type { ModelRegistry, TextCodec } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import type { EngineInfo } from '../../engine/messages.ts'
import { type EngineStats, idleStats, summedStats } from '../../engine/stats.ts'
import { SkeinError } from '../../errors.ts'
import { type RegisteredModel, registryOver } from '../routing/registry.ts'
import { mergedInfo } from '../routing/replicas.ts'
import type { ClusterMember } from './nodes.ts'

/** A worker with its own report. */
export interface InformedMember extends ClusterMember {
  readonly info: Readonly<Record<string, unknown>>
}

export function clusterRegistry(members: () => readonly InformedMember[]): ModelRegistry {
  const models = () => {
    const names = [...new Set(members().map(({ model }) => model))].sort()
    return names.map((id) => {
      const own = members().filter(({ model }) => model === id)
      return modelOf(id, own)
    })
  }
  return registryOver(models, 'no node of the cluster has a model; GET /api/cluster lists the nodes')
}

function modelOf(id: string, members: readonly InformedMember[]): RegisteredModel {
  const clients = members.map(clientOf)
  const client: EngineClient = {
    ...ASKED_ELSEWHERE,
    get info() {
      return mergedInfo(clients)
    },
    get stats() {
      return summedStats(clients.map(({ stats }) => stats))
    },
  }
  const count = members.length
  return {
    id,
    aliases: members.flatMap(({ info }) => (Array.isArray(info.aliases) ? info.aliases : [])),
    tokenizer: NO_TOKENIZER,
    source: { state: 'ready', reason: null, client, workers: { all: count, ready: count, failed: 0 } },
  }
}

/** The load, from the one figure that workers renew; the workers' own gateways report their counters. */
function statsOf({ slots, inFlight }: ClusterMember): EngineStats {
  const running = Math.min(slots, inFlight)
  return { ...idleStats(slots), running, waiting: inFlight - running, freeSlots: slots - running }
}

function clientOf(member: InformedMember): EngineClient {
  // Written by this release or an adjacent one. Missing fields read as undefined on pages about models.
  const info = member.info as unknown as EngineInfo
  return { ...ASKED_ELSEWHERE, info, stats: statsOf(member) }
}

function elsewhere(): never {
  throw new SkeinError('internal', 'the gateway of a cluster was asked for something that only nodes do')
}

const ASKED_ELSEWHERE = { generate: elsewhere, call: async () => elsewhere(), close: async () => {} }

const NO_TOKENIZER: TextCodec = {
  vocabSize: 0,
  encode: elsewhere,
  encodeAside: elsewhere,
  decode: elsewhere,
  bytesOf: elsewhere,
}
