/** POST /tokenize and /detokenize, in vLLM's shapes; `content` is llama.cpp's name for the text. */
import { Type } from '../../files/schema-types.ts'
import { checkPrompt, encodePrompt } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import { json, post, type Route } from '../route.ts'
import { Maybe, TokenId } from '../schema.ts'
import { renderChat } from '../template.ts'
import { chatBody, thinkModeOf, toTurns } from './chat-schema.ts'
import { invalid, present } from './sampling.ts'

export function tokenizeRoutes(limits: RequestLimits): readonly Route[] {
  const { messages, enable_think } = chatBody(limits).properties
  const body = Type.Object({
    model: Maybe(Type.String()),
    prompt: Maybe(Type.String()),
    content: Maybe(Type.String()),
    messages: Maybe(messages),
    enable_think,
  })
  return [
    post('/tokenize', 'Text, or a conversation through the template, to tokens', body, async (call) => {
      const { prompt, content, messages, enable_think } = call.body
      const forms = [prompt, content, messages].filter(present)
      if (forms.length !== 1) {
        throw invalid('prompt', 'expected exactly one of `prompt`, `content` and `messages`')
      }
      const model = call.models.get(call.body.model)
      const param = present(prompt) ? 'prompt' : present(content) ? 'content' : 'messages'
      const text = present(messages)
        ? renderChat(toTurns(messages), thinkModeOf(enable_think))
        : (prompt ?? content ?? '')
      const tokens = text === '' ? [] : [...(await encodePrompt(model, text, param, call.signal))]
      return json({ count: tokens.length, max_model_len: model.client.info.maxPromptTokens, tokens })
    }),
    post('/detokenize', 'Tokens to text', detokenizeBody, async (call) => {
      const model = call.models.get(call.body.model)
      const { tokens } = call.body
      if (tokens.length === 0) return json({ prompt: '' })
      const checked = checkPrompt(new Int32Array(tokens), model, 'tokens')
      return json({ prompt: model.tokenizer.decode(checked) })
    }),
  ]
}

const detokenizeBody = Type.Object({ model: Maybe(Type.String()), tokens: Type.Array(TokenId) })
