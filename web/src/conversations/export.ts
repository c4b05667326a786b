/** Exports a conversation as Markdown with a heading for each speaker. */
import { fileNameOf, getSession, saveFile } from '../lib/sessions.ts'
import { asMarkdown } from './markdown-text.ts'
import { readSession } from './read-session.ts'
import { readTranscript } from './transcript.ts'

/** More turns than a page can show. */
const MOST_TOKENS = 262_144

export async function exportText(model: string, id: string, title: string): Promise<void> {
  const stop = AbortSignal.timeout(60_000)
  const session = await getSession(model, id, stop)
  const asked = { turn: session.head, limit: MOST_TOKENS }
  const transcript = await readTranscript({ base: '', model }, id, asked, stop)
  const turns = transcript.turns.map(({ turn, parent }) => ({ turn, parent }))
  const { system, said } = readSession({ turns: turns.map(asTurn), head: session.head }, [transcript])
  const text = asMarkdown(title, system, said)
  saveFile(`${fileNameOf(title)}.md`, new Blob([text], { type: 'text/markdown' }))
}

function asTurn({ turn, parent }: { readonly turn: number; readonly parent: number }) {
  return { turn, parent, tokens: 0, created: 0, tier: 'disk', saved: true } as const
}
