/**
 * `skein chat`: a conversation in the terminal with a running server, over the same HTTP API that everyone uses.
 * With a checkpoint instead of a server it starts one for itself on a free port.
 */
import { existsSync } from 'node:fs'
import { startServer } from '../../host/server.ts'
import { engineChoice } from '../../settings/engine-choice.ts'
import { MAX_TOKENS, SAMPLING_FLAGS, samplingOptions, text, toggle } from '../../settings/flags.ts'
import { ENGINE_FLAGS, MODEL_WORDS } from '../../settings/table.ts'
import type { Values } from '../../settings/values.ts'
import { fetchMissing } from '../models/fetch.ts'
import { NAME_FLAG, SERVER_FLAGS, serverOf } from '../remote.ts'
import { defineCommand } from '../terminal/command.ts'
import { progressBar } from '../terminal/output.ts'
import { TerminalTalk } from './talk.ts'

const TALK_FLAGS = {
  system: text('System text'),
  think: toggle('Let the model think first'),
  'max-tokens': MAX_TOKENS,
  ...SAMPLING_FLAGS,
}

const QUESTION = {
  question: { description: 'Answer this and end; alone where it has a space' },
}

export const chat = defineCommand({
  examples: [
    ['skein chat', 'with the server on this machine'],
    ['skein chat --url host:8000 --api-key KEY', 'with one elsewhere'],
    ['skein chat MODEL.pth', 'without a server'],
    ["skein chat 'Why is the sky blue?'", 'one answer, and it ends'],
    ["echo 'Why is the sky blue?' | skein chat", 'each line is a message; only the answers are printed'],
  ],
  words: { ...MODEL_WORDS, ...QUESTION },
  flags: { ...SERVER_FLAGS, 'model-name': NAME_FLAG, ...TALK_FLAGS, ...ENGINE_FLAGS },
  async run({ args }) {
    const { model, question } = modelAndQuestion(args)
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

/** Ollama's word for it: whatever is missing is fetched first. */
export const run = defineCommand({
  examples: [['skein run rwkv7-g1-0.4b', 'fetched the first time, then it answers']],
  words: { model: { ...MODEL_WORDS.model, isRequired: true }, ...QUESTION },
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

/** Models rarely have a space in their names, and questions rarely have none. */
function modelAndQuestion({ model, question }: Record<'model' | 'question', string | undefined>) {
  const isQuestion = question === undefined && /\s/.test(model ?? '') && !existsSync(model!)
  return isQuestion ? { model: undefined, question: model } : { model, question }
}

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
