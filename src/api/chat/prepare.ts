/**
 * A conversation to the one request that the engine takes: its prompt in the trained form, what the answer may be, and how
 * the answer is to be read. Every dialect with chats goes through here.
 */
import {
  type GenerateRequest,
  PLAIN_REQUEST,
  type SessionUse,
  type StopParams,
  type ToolTemplate,
} from '../../engine/messages.ts'
import type { Constraint } from '../../grammar/constraint.ts'
import { boundariesAt, checkPrompt, encodePrompt, encodeTexts } from '../encode.ts'
import type { ServedModel } from '../models.ts'
import { encodeTurn } from '../sessions/use.ts'
import { type Layout, renderTurns, type ThinkMode, type Turn, turnEnds } from '../template.ts'
import type { Conversation, Message, Thinking, Tool } from './conversation.ts'
import { MARKDOWN_TOOLS } from './markdown-tools.ts'
import type { AnswerForm, PreparedChat } from './reply.ts'
import { newInSession } from './told.ts'
import { argumentsOf, callBegin, callOf, G1_TOOLS, sequence, type ToolFormat, text } from './tool-format.ts'

type Settings = Pick<GenerateRequest, 'id' | 'maxTokens' | 'sampling' | 'tenant'> &
  Partial<Pick<GenerateRequest, 'n' | 'logprobs' | 'isGathered' | 'cache'>>

interface ChatOptions extends Settings {
  readonly model: ServedModel
  readonly thinking: Thinking
  /** The client's; those of the template are added. */
  readonly stop: StopParams
  /** What the answer must be, unless it is a call. */
  readonly constraint: Constraint | null
  /** With a session only what is new of the conversation is in it. */
  readonly session?: SessionUse | null
  /** What the client expects the answer to say. */
  readonly prediction?: string | null
  /** The field that a refusal of the prompt names. */
  readonly param: string
  readonly signal: AbortSignal
}

export async function prepareChat(
  conversation: Conversation,
  { model, thinking, stop, constraint, session = null, prediction, param, signal, ...settings }: ChatOptions,
): Promise<PreparedChat> {
  const format = toolFormatOf(model)
  const inSession = session === null ? null : await newInSession(conversation, model, settings.tenant ?? '', session)
  const next = inSession?.conversation ?? conversation
  const use = inSession?.session ?? null
  const rendered = renderConversation(next, thinking, constraint, format)
  // A session that is gone by then has been told nothing.
  const first =
    next.areToolsTold === true
      ? renderConversation({ ...next, areToolsTold: false }, thinking, constraint, format)
      : rendered
  const prompt = await encodeChat(rendered, model, use, param, signal, first)
  const predicted = prediction ? await encodePredicted(rendered, model, prediction, signal) : {}
  const strings = [...new Set([...stop.strings, ...rendered.stops])]
  const limits = rendered.constraint === null ? {} : { constraint: rendered.constraint }
  const start = rendered.form.tools === null ? {} : startWithTools(model)
  const request = {
    ...PLAIN_REQUEST,
    cache: 'use' as const,
    ...settings,
    ...prompt,
    ...limits,
    ...start,
    ...predicted,
    stop: { ...stop, strings },
  }
  return { model, request, form: rendered.form }
}

/** A start state of this name is tuned for tools. */
const TOOLS_STATE = 'tools'

/** A state that the request names itself comes before it. */
function startWithTools({ client, mixture }: ServedModel): Pick<GenerateRequest, 'startState'> | Record<never, never> {
  const isThere = client.info.startStates?.includes(TOOLS_STATE) === true
  return isThere && mixture === undefined ? { startState: TOOLS_STATE } : {}
}

interface Rendered {
  readonly turns: readonly Turn[]
  readonly tail: string
  readonly layout: Layout
  readonly stops: readonly string[]
  readonly form: AnswerForm
  readonly constraint: Constraint | null
}

export function renderConversation(
  conversation: Conversation,
  { mode: asked, hint }: Thinking,
  constraint: Constraint | null,
  format: ToolFormat,
): Rendered {
  const { choice, messages } = conversation
  const tools = offered(conversation)
  const offer = { ...conversation, tools }
  const isPlain =
    tools.length === 0 &&
    !messages.some((one) => one.role === 'tool' || ('calls' in one && (one.calls ?? []).length > 0))
  const form = isPlain ? G1_TOOLS : format
  const turns = turnsOf(offer, hint, form)
  const { layout, stops } = form
  const mode = form.modeOf(asked)
  const tail = form.tail(mode)
  const told = { turns, layout, stops }
  if (tools.length === 0) {
    const limit = constraint === null ? null : afterTail(mode, constraint)
    return { ...told, tail, form: { think: mode, tools: null }, constraint: limit }
  }
  const names = tools.map(({ name }) => name)
  const isOpen = choice !== 'auto' && mode === 'none'
  return {
    ...told,
    tail: isOpen ? `${tail} ${format.opening}` : tail,
    form: { think: isOpen ? 'done' : mode, tools: { names, isOpen } },
    constraint: choice === 'auto' ? mayCall(offer, mode, constraint, format) : oneCall(tools, mode, format),
  }
}

function offered({ tools, choice }: Conversation): readonly Tool[] {
  if (choice === 'none') return []
  if (typeof choice === 'string') return tools
  return tools.filter(({ name }) => name === choice.name)
}

function turnsOf(conversation: Conversation, hint: string, format: ToolFormat): Turn[] {
  const turns: Turn[] = []
  let results: string[] = []
  for (const message of conversation.messages) {
    if (message.role === 'tool') {
      results.push(message.content)
      continue
    }
    if (results.length > 0) turns.push(...format.results(results))
    results = []
    const turn = turnOf(message, format)
    const before = turns.at(-1)
    const isJoined = format.joinsSystems && turn.role === 'system' && before?.role === 'system'
    if (isJoined) turns[turns.length - 1] = joined(before, turn.content)
    else turns.push(turn)
  }
  if (results.length > 0) turns.push(...format.results(results))
  const last = turns.at(-1)
  if (hint !== '' && last?.role === 'user') turns[turns.length - 1] = { ...last, content: `${last.content}${hint}` }
  if (conversation.tools.length === 0 || conversation.areToolsTold === true) return turns
  const list = format.list(conversation)
  const [first] = turns
  if (first?.role !== 'system') return [{ role: 'system', content: list }, ...turns]
  return [{ role: 'system', content: `${first.content}\n${list}` }, ...turns.slice(1)]
}

/** One turn of two, a line each; nothing of an empty one. */
function joined(turn: Turn, content: string): Turn {
  return { ...turn, content: [turn.content, content].filter((text) => text !== '').join('\n') }
}

function turnOf(message: Exclude<Message, { role: 'tool' }>, format: ToolFormat): Turn {
  if (message.role !== 'assistant') return message
  const { content, calls = [] } = message
  if (calls.length === 0) return { role: 'assistant', content }
  const said = content === '' ? '' : `${content}\n`
  return { role: 'assistant', content: `${said}${format.calls(calls)}` }
}

/** A call, and nothing else. */
function oneCall(tools: readonly Tool[], mode: ThinkMode, format: ToolFormat): Constraint {
  const block = blockOf(tools, format)
  // The prompt holds the opening where no thought comes before it.
  return mode === 'none' ? block : afterTail(mode, sequence(text(format.opening), block))
}

/** A call behind its opening. */
function blockOf(tools: readonly Tool[], format: ToolFormat): Constraint {
  const call = { type: 'choice', options: tools.map((tool) => callOf(tool, format)) } as const
  return sequence(text('\n'), call, text(`\n${format.closing}`))
}

/** A call, or an answer of the form that was asked for, if one was. */
function mayCall(offer: Conversation, mode: ThinkMode, answer: Constraint | null, format: ToolFormat): Constraint {
  if (answer === null) return freeCalls(offer, mode, format)
  const call = sequence(text(format.opening), blockOf(offer.tools, format))
  return afterTail(mode, { type: 'choice', options: [call, answer] })
}

/** Text, and a call wherever the model begins one. */
function freeCalls({ tools, parallel }: Conversation, mode: ThinkMode, format: ToolFormat): Constraint {
  const { opening, closing, space } = format
  const calls: Constraint = {
    type: 'triggered',
    triggers: [`${opening}\n{"name":${space}"`],
    tags: tools.map((tool) => ({
      begin: `${opening}\n${callBegin(tool.name, format)}`,
      content: argumentsOf(tool),
      end: `}\n${closing}`,
    })),
    isLast: !parallel,
  }
  return mode === 'open' ? sequence({ type: 'until', end: '</think>' }, calls) : calls
}

/** What the model writes between the end of the prompt and the answer comes first. */
function afterTail(mode: ThinkMode, answer: Constraint): Constraint {
  switch (mode) {
    case 'none':
      return sequence({ type: 'regex', pattern: '[ ]?' }, answer)
    case 'open':
      return sequence({ type: 'until', end: '</think>' }, { type: 'regex', pattern: '\\n?' }, answer)
    case 'closed':
      return sequence({ type: 'regex', pattern: '>\\n{1,2}' }, answer)
    case 'done':
      return answer
  }
}

/** As the model writes it: behind what it writes between the end of the prompt and its answer. */
async function encodePredicted({ form }: Rendered, model: ServedModel, text: string, signal: AbortSignal) {
  const before = { none: ' ', closed: '>\n', open: '', done: '' }[form.think]
  const [prediction] = await encodeTexts(model, [`${before}${text}`], signal)
  return { prediction: checkPrompt(prediction!, model, 'prediction') }
}

/** In a session only what is new is sent; it begins the next turn. `first`: where there is no turn before it. */
export async function encodeChat(
  { turns, tail, layout }: Pick<Rendered, 'turns' | 'tail' | 'layout'>,
  model: ServedModel,
  session: SessionUse | null,
  param: string,
  signal: AbortSignal,
  first: Pick<Rendered, 'turns'> = { turns },
): Promise<Pick<GenerateRequest, 'prompt' | 'promptAtBeginning' | 'boundaries' | 'session'>> {
  const whole = renderTurns(turns, tail, layout)
  if (session !== null) {
    const texts = { next: whole, first: renderTurns(first.turns, tail, layout) }
    return { ...(await encodeTurn(model, texts, param, signal, layout.between)), session }
  }
  const prompt = await encodePrompt(model, whole, param, signal)
  return { prompt, boundaries: boundariesAt(prompt, model.tokenizer, turnEnds(turns, layout)) }
}

const TOOL_FORMATS: Readonly<Record<ToolTemplate, ToolFormat>> = { g1: G1_TOOLS, 'vllm-rwkv': MARKDOWN_TOOLS }

export function toolFormatOf({ client }: ServedModel): ToolFormat {
  return TOOL_FORMATS[client.info.toolTemplate ?? 'g1']
}
