/** The words by which clients ask for a thought, or for none: of one meaning where several are sent. */
import { invalid } from '../../../errors.ts'
import { type Static, Type } from '../../../files/schema-types.ts'
import { type Thinking, thinking, thinkingOf } from '../../chat/conversation.ts'
import { Maybe } from '../../schema.ts'
import { present } from '../sampling.ts'

export function thinkingFields() {
  return {
    enable_think: Maybe(Type.Boolean()),
    reasoning_effort: Maybe(Type.String()),
    chat_template_kwargs: Maybe(
      Type.Object(
        { enable_thinking: Maybe(Type.Boolean()), thinking: Maybe(Type.Boolean()) },
        { additionalProperties: false },
      ),
    ),
    think_type: Maybe(Type.String()),
  }
}

export type ThinkingFields = Static<ReturnType<typeof Type.Object<ReturnType<typeof thinkingFields>>>>

/** rwkv_lightning's names, as efforts. */
const TYPES: Readonly<Record<string, string>> = {
  fast: 'none',
  enShort: 'low',
  free: 'medium',
  en: 'medium',
  enLong: 'high',
}

export function thinkingOfBody(body: ThinkingFields): Thinking {
  const kwargs = body.chat_template_kwargs?.enable_thinking ?? body.chat_template_kwargs?.thinking
  const switches = [body.enable_think, kwargs].filter(present)
  const isOn = switches[0]
  if (switches.some((one) => one !== isOn))
    throw invalid('chat_template_kwargs', 'it differs from enable_think; send one of the two')
  const effort = effortOf(body)
  if (effort === null) return thinking(isOn === undefined ? 'none' : isOn ? 'open' : 'closed')
  if (isOn !== undefined && isOn !== (effort.mode === 'open'))
    throw invalid('reasoning_effort', 'it differs from the field that switches thinking on or off')
  return effort
}

function effortOf({ reasoning_effort: effort, think_type: type }: ThinkingFields): Thinking | null {
  if (present(type) && type !== '') {
    const name = Object.hasOwn(TYPES, type) ? TYPES[type]! : null
    if (name === null) throw invalid('think_type', `expected ${Object.keys(TYPES).join(', ')}`)
    if (present(effort) && effort !== name)
      throw invalid('think_type', 'it differs from reasoning_effort; send one of the two')
    return thinkingOf(name)
  }
  if (!present(effort)) return null
  const found = thinkingOf(effort)
  if (found === null) throw invalid('reasoning_effort', 'expected none, minimal, low, medium, high or xhigh')
  return found
}
