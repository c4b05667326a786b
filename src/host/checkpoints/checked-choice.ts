/** The choice of a model by a caller of the library, looked at field by field (../../files/given.ts). */
import {
  anything,
  type Check,
  checkGiven,
  flag,
  list,
  listOf,
  number,
  object,
  oneOf,
  text,
  whole,
} from '../../files/given.ts'
import { SPECULATE_CHOICES } from '../../model/run/speculate-choice.ts'
import { DEVICES_TAKEN, parseDevice, WKV_CHOICES } from '../device-choice.ts'
import { EMBEDDINGS_CHOICES, type EngineChoice, QUANT_CHOICES, TOOL_TEMPLATE_CHOICES } from '../model-choice.ts'

const amount = number(0, Number.POSITIVE_INFINITY)
const device: Check = (value) =>
  typeof value === 'string' && parseDevice(value) !== undefined ? null : `one of ${DEVICES_TAKEN}`

const FIELDS: { readonly [K in keyof Required<EngineChoice>]: Check } = {
  ...{ model: text, vocab: text, draft: text, reranker: text, dataDir: text },
  ...{ adapters: listOf(object), startStates: list, ppDevices: list, cluster: anything },
  ...{ durable: flag, importForeign: flag },
  device,
  quant: oneOf(...QUANT_CHOICES),
  wkv: oneOf(...WKV_CHOICES),
  embeddings: oneOf(...EMBEDDINGS_CHOICES),
  toolTemplate: oneOf(...TOOL_TEMPLATE_CHOICES),
  speculate: oneOf(...SPECULATE_CHOICES),
  ...{ threads: whole(1), slots: whole(1), maxTokens: whole(1), maxPromptTokens: whole(1), prefillChunk: whole(1) },
  ...{ maxWaiting: whole(0), slotStates: whole(0), memoryStates: whole(0), maxSessions: whole(0), maxTurns: whole(1) },
  ...{ memoryBytes: amount, prefixCacheBytes: amount, preemptBytes: amount, memoryStateBytes: amount },
  ...{ maxSessionBytes: amount, sessionTtlSeconds: amount, itlTargetMs: amount },
}

const ADAPTER: Readonly<Record<string, Check>> = { path: text, scale: number(-1e9, 1e9), init: text }

export function checkChoice(choice: EngineChoice): void {
  checkGiven(choice, FIELDS)
  for (const [i, adapter] of (choice.adapters ?? []).entries())
    checkGiven(adapter, ADAPTER, `adapters[${i}].`, ['path'])
}
