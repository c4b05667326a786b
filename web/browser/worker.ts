/** Runs the model off the page's thread: one conversation, whose state stays between turns. */
import {
  CHAT_STOPS,
  forgetStored,
  type Llm,
  type LlmState,
  load,
  renderChat,
  SkeinError,
} from '../../src/browser/index.ts'
import type { Asked, Told } from './messages.ts'

let llm: Llm | null = null
let state: LlmState | null = null
let stopping = new AbortController()

function tell(told: Told): void {
  postMessage(told)
}

async function loadFrom(url: string): Promise<void> {
  llm = await load(url, {
    slots: 1,
    onProgress: ({ stage, doneBytes, totalBytes }) =>
      tell({ type: 'progress', stage, done: doneBytes, total: totalBytes }),
  })
  const { device, numParameters } = llm.info
  tell({ type: 'ready', device, parameters: numParameters })
}

async function answer(content: string): Promise<void> {
  if (llm === null) return
  state ??= llm.begin()
  stopping = new AbortController()
  const between = state.tokens.length === 0 ? '' : '\n\n'
  const prompt = between + renderChat([{ role: 'user', content }], 'none')
  const options = { temperature: 0, maxTokens: 200, stop: CHAT_STOPS, signal: stopping.signal }
  const start = performance.now()
  const before = state.tokens.length + llm.tokenizer.encode(prompt).length
  try {
    for await (const text of state.generate(prompt, options)) tell({ type: 'piece', text })
  } catch (error) {
    if (!(error instanceof SkeinError) || error.code !== 'aborted') throw error
  }
  const seconds = (performance.now() - start) / 1000
  tell({ type: 'over', tokens: Math.max(0, state.tokens.length - before), seconds })
}

function clear(): void {
  state?.close()
  state = null
}

async function obey(asked: Asked): Promise<void> {
  switch (asked.type) {
    case 'load':
      return await loadFrom(asked.url)
    case 'ask':
      return await answer(asked.content)
    case 'stop':
      return stopping.abort()
    case 'clear':
      return clear()
    case 'forget':
      await forgetStored()
      return tell({ type: 'forgotten' })
  }
}

addEventListener('message', ({ data }: MessageEvent<Asked>) => {
  obey(data).catch((error: unknown) => {
    tell({ type: 'failed', message: SkeinError.from(error).message })
  })
})
