/**
 * `skein chat`: a conversation in the terminal with a running server, over the public HTTP API. Given a checkpoint, it
 * starts a server of its own on a free port.
 */
import { startServer } from '../../host/server.ts'
import { engineChoice } from '../../settings/engine-choice.ts'
import { MAX_TOKENS, SAMPLING_FLAGS, samplingOptions, text, toggle } from '../../settings/flags.ts'
import { ENGINE_FLAGS, MODEL_WORD } from '../../settings/table.ts'
import type { Values } from '../../settings/values.ts'
import { fetchMissing } from '../models/fetch.ts'
import { NAME_FLAG, SERVER_FLAGS, serverOf } from '../remote.ts'
import { defineCommand } from '../terminal/command.ts'
import { modelAndText } from '../terminal/model-or-text.ts'
import { progressBar } from '../terminal/output.ts'
import { TerminalTalk } from './talk.ts'

const TALK_FLAGS = {
  system: text('System prompt'),
  think: toggle('Let the model think before it answers'),
  'max-tokens': MAX_TOKENS,
  ...SAMPLING_FLAGS,
}

const QUESTION = { description: 'Answer this question and exit' }

export const chat = defineCommand({
  examples: [
    ['skein chat', 'with the server on this machine'],
    ['skein chat --url host:8000 --api-key KEY', 'with a server elsewhere'],
    ['skein chat MODEL.pth', 'without a server'],
    ["skein chat 'Why is the sky blue?'", 'one answer, then exit'],
    ["echo 'Why is the sky blue?' | skein chat", 'each line is a message; only the answers are printed'],
  ],
  words: {
    model: MODEL_WORD,
    question: { description: `${QUESTION.description}; needs no model argument unless it looks like one` },
  },
  flags: { ...SERVER_FLAGS, 'model-name': NAME_FLAG, ...TALK_FLAGS, ...ENGINE_FLAGS },
  async run({ args }) {
    const { model, text: question } = modelAndText({ model: args.model, text: args.question })
    const own = model ? await ownServer({ ...args, model }) : null
    try {
      await new TerminalTalk({
        ...(own ? { url: own.url, apiKey: undefined } : serverOf(args)),
        model: own ? undefined : args['model-name'],
        ...talkOptions(args),
      }).run(question)
    } finally {
      await own?.stop()
    }
  },
})

/** `skein run`, named as in Ollama: downloads the model if it is missing. */
export const run = defineCommand({
  examples: [['skein run rwkv7-g1-0.4b', 'downloads the model at the first use']],
  words: { model: { ...MODEL_WORD, isRequired: true }, question: QUESTION },
  flags: { ...TALK_FLAGS, ...ENGINE_FLAGS },
  async run({ args }) {
    await fetchMissing(args.model)
    const own = await ownServer(args)
    try {
      const server = { url: own.url, apiKey: undefined, model: undefined }
      await new TerminalTalk({ ...server, ...talkOptions(args) }).run(args.question)
    } finally {
      await own.stop()
    }
  },
})

function ownServer(args: Values<typeof ENGINE_FLAGS> & { readonly model: string | undefined }) {
  return startServer(engineChoice(args), { port: 0, onProgress: progressBar('loading') })
}

function talkOptions(args: Values<typeof TALK_FLAGS>) {
  return {
    maxTokens: args['max-tokens'],
    sampling: samplingOptions(args),
    system: args.system ?? '',
    isThinking: args.think,
  }
}
