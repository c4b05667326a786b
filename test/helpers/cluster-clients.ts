/** Clients of a whole cluster: each continues its session over HTTP at any gateway, and checks the replies. */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { expect } from 'vitest'
import { type RunningServer, serve } from './cli.ts'
import { note, type Talk, type Tally, think } from './cluster-faults.ts'
import { postJson } from './post-json.ts'

/** Longest that a client waits for an answer. */
const TURN_MS = 30_000
/** A slower request is investigated. */
const LONG_MS = 10_000

interface Told {
  readonly text: string
  readonly session: { readonly turn: number; readonly version: number }
}

/** The message of turn `turn` of session `index`, after the turn `from`. */
interface Question {
  readonly index: number
  readonly turn: number
  readonly id: string
  readonly from: number
}

export class Refused extends Error {}

/** Called when a request hangs. */
export type LookInto = (requestId: string, session: string, url: string) => Promise<void>

export async function ask(url: string, question: Question, lookInto: LookInto = async () => {}): Promise<Told> {
  const requestId = randomUUID()
  const watch = setTimeout(() => void lookInto(requestId, question.id, url), LONG_MS)
  try {
    return await askOnce(url, question, requestId)
  } finally {
    clearTimeout(watch)
  }
}

async function askOnce(url: string, { index, turn, id, from }: Question, requestId: string): Promise<Told> {
  const isStream = (index + turn) % 2 === 0
  const reply = await postJson(
    `${url}/v1/completions`,
    {
      prompt: Array.from({ length: 6 }, (_, at) => 1 + ((at * 37 + turn * 101 + index * 53) % 250)),
      ...{ max_tokens: 6, temperature: 1, top_p: 0.9, seed: turn, stream: isStream },
      session: { id, from, if_missing: 'create', if_busy: 'wait', on_cancel: 'drop' },
    },
    { 'x-request-id': requestId },
    AbortSignal.timeout(TURN_MS),
  )
  const text = await reply.text()
  if (reply.status !== 200) throw new Refused(`status ${reply.status}`)
  return isStream ? streamed(text) : whole(text)
}

interface Body {
  readonly choices?: readonly { readonly text: string }[]
  readonly session?: Told['session']
  readonly error?: unknown
}

function whole(text: string): Told {
  // An answer that starts with white space may end with an error, or without an end.
  const { choices, session } = JSON.parse(text) as Body
  if (choices === undefined || session === undefined) throw new Refused('error in an answer')
  return { text: choices[0]!.text, session }
}

function streamed(stream: string): Told {
  const events = stream.split('\n\n').filter((event) => event.startsWith('data: '))
  let text = ''
  let session: Told['session'] | undefined
  for (const event of events) {
    const data = event.slice('data: '.length)
    if (data === '[DONE]') continue
    const body = JSON.parse(data) as Body
    if (body.error !== undefined) throw new Refused('error event')
    text += body.choices?.[0]?.text ?? ''
    session ??= body.session
  }
  if (session === undefined || events.at(-1) !== 'data: [DONE]') throw new Refused('cut stream')
  return { text, session }
}

export interface Clients {
  /** Errors that clients found. */
  readonly failures: readonly unknown[]
  /** After their last turns. */
  stop(): Promise<void>
}

/** Continues each session at changing gateways until stopped. */
export function startClients(
  talks: readonly Talk[],
  gatewayUrls: () => readonly string[],
  { count }: Tally,
  lookInto?: LookInto,
): Clients {
  let isOver = false
  const failures: unknown[] = []
  const converse = async (talk: Talk, index: number) => {
    while (!isOver) {
      const urls = gatewayUrls()
      const url = urls[Math.floor(Math.random() * urls.length)]
      try {
        if (url === undefined) throw new Refused('no gateway')
        const question = { index, turn: talk.answers.length, id: talk.id, from: talk.head }
        const { text, session } = await ask(url, question, lookInto)
        note(talk, text, session)
        count('told')
        await think()
      } catch (error) {
        if (error instanceof Error && error.name === 'AssertionError') throw error
        // A cut answer is not JSON, and a cut connection has no answer.
        count(error instanceof Refused ? error.message : 'cut off')
        await delay(50)
      }
    }
  }
  const talking = talks.map((talk, index) =>
    converse(talk, index).catch((error) => {
      failures.push(error)
    }),
  )
  return {
    failures,
    async stop() {
      isOver = true
      await Promise.all(talking)
    },
  }
}

/** Checks that every answer equals that of a single server. */
export async function checkAgainstSolo(talks: readonly Talk[], flags: readonly string[]): Promise<void> {
  const solo: RunningServer = await serve(flags)
  try {
    await Promise.all(
      talks.map(async ({ id, answers }, index) => {
        let head = 0
        for (const [turn, told] of answers.entries()) {
          const { text, session } = await ask(solo.url, { index, turn, id, from: head })
          expect([id, turn, told]).toEqual([id, turn, text])
          head = session.turn
        }
      }),
    )
  } finally {
    solo.process.kill('SIGKILL')
  }
}
