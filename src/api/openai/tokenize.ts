/** POST /tokenize and /detokenize, in vLLM's shapes; `content` and `with_pieces` are llama.cpp's. */

import { isUtf8 } from 'node:buffer'
import { invalid, SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { checkPrompt, encodePrompt } from '../encode.ts'
import type { UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import { type Call, json, post, type Route } from '../route.ts'
import { Maybe, TokenId } from '../schema.ts'
import { renderChat } from '../template.ts'
import { chatBody, thinkModeOf, toTurns } from './chat-schema.ts'
import { present } from './sampling.ts'

/** Each is an object, made where all clients wait: 4,096 take some 6 ms. */
const MOST_PIECES = 4096

/** No token is special here. */
const UNREAD: UnreadFields = { harmless: ['add_special', 'add_special_tokens', 'parse_special'], refused: {} }

export function tokenizeRoutes(limits: RequestLimits): readonly Route[] {
  const { messages, enable_think } = chatBody(limits).properties
  const body = Type.Object({
    model: Maybe(Type.String()),
    prompt: Maybe(Type.String()),
    content: Maybe(Type.String()),
    messages: Maybe(messages),
    enable_think,
    with_pieces: Maybe(Type.Boolean()),
  })
  const tokenize = async (call: Call<Static<typeof body>>) => {
    const { prompt, content, messages, enable_think } = call.body
    const forms = [prompt, content, messages].filter(present)
    if (forms.length !== 1) throw invalid('prompt', 'expected exactly one of `prompt`, `content` and `messages`')
    const model = call.models.get(call.body.model)
    const param = present(prompt) ? 'prompt' : present(content) ? 'content' : 'messages'
    const text = present(messages)
      ? renderChat(toTurns(messages), thinkModeOf(enable_think))
      : (prompt ?? content ?? '')
    const tokens = text === '' ? [] : [...(await encodePrompt(model, text, param, call.signal))]
    if (call.body.with_pieces === true && tokens.length > MOST_PIECES) {
      const message = `with_pieces: the text has ${tokens.length} tokens; expected at most ${MOST_PIECES}: send it in parts, or without with_pieces`
      throw new SkeinError('too_large', message, { param: 'with_pieces' })
    }
    const pieces = () => tokens.map((id) => ({ id, piece: pieceOf(model.tokenizer.bytesOf(id)) }))
    const list = call.body.with_pieces === true ? pieces() : tokens
    return json({ count: tokens.length, max_model_len: model.client.info.maxPromptTokens, tokens: list })
  }
  return [
    post('/tokenize', 'Text, or a conversation through the template, to tokens', body, tokenize, UNREAD),
    post('/detokenize', 'Tokens to text', detokenizeBody, async (call) => {
      const model = call.models.get(call.body.model)
      const { tokens } = call.body
      if (tokens.length === 0) return json({ prompt: '', content: '' })
      const checked = checkPrompt(new Int32Array(tokens), model, 'tokens')
      const text = model.tokenizer.decode(checked)
      return json({ prompt: text, content: text })
    }),
  ]
}

const detokenizeBody = Type.Object({ model: Maybe(Type.String()), tokens: Type.Array(TokenId) })

/** Bytes that are no text by themselves are given as numbers. */
function pieceOf(bytes: Uint8Array): string | number[] {
  return isUtf8(bytes) ? Buffer.from(bytes).toString() : [...bytes]
}
