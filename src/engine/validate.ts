/**
 * What the engine requires of a request, whoever sends it: the wire layer has already answered for field names and
 * ranges of its dialect; this is what would break a step. A request that can never run is refused here, before it
 * waits.
 */
import { SkeinError } from '../errors.ts'
import { checkConstraint } from '../grammar/check.ts'
import { MAX_TOP_LOGPROBS } from '../model/runner.ts'
import {
  type EngineInfo,
  type GenerateRequest,
  MAX_NOTE_BYTES,
  type MixedState,
  type SamplingParams,
  type SessionUse,
} from './messages.ts'

/** Throws invalid_request or too_large. `hasSessions`: this engine keeps sessions. */
export function checkRequest(request: GenerateRequest, limits: EngineInfo, hasSessions: boolean): void {
  demand(request.id !== '', 'id', 'must not be empty')
  if (request.session !== undefined) checkSession(request, request.session, hasSessions)
  const { prompt, promptAtBeginning, session } = request
  const mayBeEmpty = session !== undefined
  demand(mayBeEmpty || promptAtBeginning === undefined, 'promptAtBeginning', 'is for sessions')
  for (const tokens of [prompt, promptAtBeginning ?? prompt]) checkPrompt(tokens, mayBeEmpty, limits)
  if (request.prediction !== undefined) checkPrompt(request.prediction, true, limits)
  checkBoundaries(request)
  checkCounts(request, limits)
  if (request.mixture !== undefined) checkMixture(request, request.mixture, limits)
  if (request.embedding !== undefined) checkEmbedding(request, limits)
  if (request.isRanked === true) {
    demand(limits.ranks === true, 'isRanked', 'needs a model with a reranker')
    demand(request.embedding === undefined, 'isRanked', 'goes with no embedding')
    checkReadOnly(request, 'isRanked')
  }
  checkSampling(request.sampling, limits.model.vocabSize)
  checkStops(request)
  if (request.constraint !== undefined) checkConstraint(request.constraint, 'schema')
}

/** A session may have an unfed tail to go on from, so its prompt may be empty; sessions/writers.ts knows. */
function checkPrompt(prompt: Int32Array, mayBeEmpty: boolean, { maxPromptTokens, model }: EngineInfo): void {
  const { vocabSize } = model
  demand(mayBeEmpty || prompt.length > 0, 'prompt', 'must have at least one token')
  if (prompt.length > maxPromptTokens) {
    const message = `the prompt has ${prompt.length} tokens, more than the limit of ${maxPromptTokens}; shorten it or raise maxPromptTokens`
    throw new SkeinError('too_large', message, { param: 'prompt' })
  }
  const bad = prompt.find((token) => token < 0 || token >= vocabSize)
  demand(bad === undefined, 'prompt', `has token ${bad}; tokens are 0 to ${vocabSize - 1}`)
}

function checkSession(request: GenerateRequest, { id, from, ttlSeconds, note = '' }: SessionUse, hasSessions: boolean) {
  if (!hasSessions) throw new SkeinError('unsupported_parameter', 'this engine keeps no sessions', { param: 'session' })
  demand(id !== '', 'session.id', 'must not be empty')
  demand(request.n === 1, 'n', `must be 1 in a session, not ${request.n}`)
  demand(request.promptLogprobs === null, 'promptLogprobs', 'cannot be had in a session')
  demand(request.cache !== 'no-store', 'cache', 'cannot be no-store in a session, which is stored')
  const isTurn = from === undefined || (Number.isInteger(from) && from >= 0)
  demand(isTurn, 'session.from', `must be the number of a turn, not ${from}`)
  const isTime = ttlSeconds === undefined || ttlSeconds > 0
  demand(isTime, 'session.ttlSeconds', `must be more than 0, not ${ttlSeconds}`)
  const isShort = Buffer.byteLength(note) <= MAX_NOTE_BYTES
  demand(isShort, 'session.note', `must be at most ${MAX_NOTE_BYTES} bytes`)
}

/** Ascending, so that the first and the last are what they are taken for. */
function checkBoundaries({ boundaries }: GenerateRequest): void {
  const isAscending = boundaries?.every((end, i) => end >= 0 && end > (boundaries[i - 1] ?? -1))
  demand(isAscending ?? true, 'boundaries', 'must be ascending lengths of prefixes')
}

function checkCounts(request: GenerateRequest, { numSlots, model }: EngineInfo): void {
  const { n, maxTokens, logprobs, promptLogprobs } = request
  const most = Math.min(MAX_TOP_LOGPROBS, model.vocabSize)
  demand(Number.isInteger(n) && n >= 1, 'n', `must be an integer of at least 1, not ${n}`)
  if (n > numSlots) {
    const message = `n = ${n} choices need as many slots, more than the ${numSlots} of this engine; lower n or load the model with more slots`
    throw new SkeinError('too_large', message, { param: 'n' })
  }
  demand(
    Number.isInteger(maxTokens) && maxTokens >= 0,
    'maxTokens',
    `must be an integer of at least 0, not ${maxTokens}`,
  )
  for (const [param, k] of Object.entries({ logprobs, promptLogprobs })) {
    const isValid = k === null || (Number.isInteger(k) && k >= 0 && k <= most)
    demand(isValid, param, `must be an integer from 0 to ${most}, not ${k}`)
  }
}

/** It is all that the request asks for, and each of its tokens is read here. */
function checkEmbedding(request: GenerateRequest, { embeddingTasks = [] }: EngineInfo): void {
  const { embeddingTask: task } = request
  const isHere = task === undefined || embeddingTasks.includes(task)
  demand(isHere, 'embeddingTask', `is no head of this model, which has [${embeddingTasks}]`)
  checkReadOnly(request, 'embedding')
}

function checkReadOnly({ n, maxTokens, promptLogprobs, session, mixture, cache }: GenerateRequest, what: string): void {
  demand(n === 1 && maxTokens === 0, what, 'needs n 1 and maxTokens 0')
  const isAlone = promptLogprobs === null && session === undefined && mixture === undefined
  demand(isAlone, what, 'goes with no scores, session or mixture')
  demand(cache === 'no-store', what, "needs cache 'no-store'")
}

function checkMixture(
  { n, promptLogprobs, session, startState }: GenerateRequest,
  mixture: readonly MixedState[],
  { numSlots }: EngineInfo,
): void {
  demand(mixture.length > 0, 'mixture', 'must have at least one state')
  const areFloats = mixture.every(({ weight }) => isFloat(weight))
  demand(areFloats, 'mixture', `must have weights that are each ${A_FLOAT}`)
  demand(startState === undefined, 'startState', 'is said by the mixture')
  demand(n === 1, 'n', `must be 1 with a mixture, not ${n}`)
  demand(session === undefined, 'session', 'cannot be used with a mixture')
  demand(promptLogprobs === null, 'promptLogprobs', 'cannot be had with a mixture')
  if (mixture.length <= numSlots) return
  const message = `a mixture of ${mixture.length} states needs as many slots, more than the ${numSlots} of this engine`
  throw new SkeinError('too_large', message, { param: 'mixture' })
}

function checkSampling(sampling: SamplingParams, vocabSize: number): void {
  const { seed, logitBias, bannedTokens, ...numbers } = sampling
  const { topK, repetitionPenalty } = numbers
  for (const [param, value] of Object.entries(numbers))
    demand(isFloat(value), param, `must be ${A_FLOAT}, not ${value}`)
  demand(topK === (topK | 0), 'topK', `must be an integer of 32 bits, not ${topK}`)
  const divides = Math.fround(repetitionPenalty) > 0
  demand(divides, 'repetitionPenalty', `must be more than 0, not ${repetitionPenalty}`)
  demand(seed === null || (seed >= 0n && seed < 2n ** 64n), 'seed', `must fit an unsigned 64-bit integer, not ${seed}`)
  const isToken = (id: number) => Number.isInteger(id) && id >= 0 && id < vocabSize
  const expected = `tokens are 0 to ${vocabSize - 1}`
  for (const [token, bias] of logitBias) {
    demand(isToken(token), 'logitBias', `has token ${token}; ${expected}`)
    demand(isFloat(bias), 'logitBias', `of token ${token} must be ${A_FLOAT}, not ${bias}`)
  }
  for (const token of bannedTokens) demand(isToken(token), 'bannedTokens', `has token ${token}; ${expected}`)
  const numBanned = new Set(bannedTokens).size
  demand(numBanned < vocabSize, 'bannedTokens', 'bans every token; leave at least one')
}

/** A stop token beyond the vocabulary is allowed: it is never drawn, and dialects have defaults of the World one. */
function checkStops({ stop }: GenerateRequest): void {
  for (const token of stop.tokens)
    demand(Number.isInteger(token) && token >= 0, 'stop.tokens', `has ${token}, not a token id`)
  for (const string of stop.strings) {
    demand(string !== '', 'stop.strings', 'has an empty string, which would stop every answer')
    demand(!LONE_SURROGATE.test(string), 'stop.strings', 'has half of a surrogate pair, which no text contains')
  }
}

/** Devices hold it in 32 bits: what is more there is an infinity. */
function isFloat(value: number): boolean {
  return Number.isFinite(Math.fround(value))
}

const A_FLOAT = 'a finite number of 32 bits'

const LONE_SURROGATE = /\p{Surrogate}/u

function demand(condition: boolean, param: string, problem: string): asserts condition {
  if (!condition) throw new SkeinError('invalid_request', `${param} ${problem}`, { param })
}
