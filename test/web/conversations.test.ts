import { afterEach, describe, expect, test, vi } from 'vitest'
import { asMarkdown } from '../../web/src/conversations/markdown-text.ts'
import { byPeriod, type Conversation } from '../../web/src/conversations/periods.ts'
import {
  readSession,
  type Transcript,
  type TranscriptMessage,
  type TranscriptTurn,
} from '../../web/src/conversations/read-session.ts'
import { asQuoted, readTextFile } from '../../web/src/playground/attachment.ts'

const stored = (turn: number, parent: number) => {
  return { turn, parent, tokens: 9, created: 1, tier: 'disk', saved: true } as const
}

function words(turn: number, parent: number, ...said: string[]): TranscriptTurn {
  const messages = said.map((line) => {
    const [role, content] = line.split(': ', 2) as ['user' | 'system' | 'assistant', string] // as written below
    return { role, content }
  })
  return { turn, parent, tokens: 9, text: said.join('\n\n'), messages }
}

const transcript = (...turns: TranscriptTurn[]): Transcript => {
  return { title: '', skipped_tokens: 0, turns }
}

describe('a session that is read from the server', () => {
  test('has every branch, and continues at its head', () => {
    const one = words(1, 0, 'system: Be brief.', 'user: a', 'assistant: A')
    const read = readSession({ turns: [stored(1, 0), stored(2, 1), stored(3, 1)], head: 2 }, [
      transcript(one, words(2, 1, 'user: b', 'assistant: B')),
      transcript(one, words(3, 1, 'user: c', 'assistant: C')),
    ])
    expect(read.system).toBe('Be brief.')
    expect(read.head).toBe(2)
    expect(read.said.map(({ parent, question, text, turn }) => [parent, question, text, turn])).toEqual([
      [0, 'a', 'A', 1],
      [1, 'b', 'B', 2],
      [1, 'c', 'C', 3],
    ])
  })

  test('that was pruned, or imported, begins with exchanges that have no turn of their own', () => {
    const all = words(7, 6, 'user: a', 'assistant: A', 'user: b', 'assistant: B')
    const read = readSession({ turns: [stored(7, 6), stored(8, 7)], head: 8 }, [
      transcript(all, words(8, 7, 'user: c', 'assistant: C')),
    ])
    expect(read.said.map(({ id, parent, question, turn }) => [id, parent, question, turn])).toEqual([
      [1, 0, 'a', null],
      [2, 1, 'b', 7],
      [3, 2, 'c', 8],
    ])
  })

  test('has tool calls and results as such, and offers the tools of its head again', () => {
    const tools = [{ type: 'function', function: { name: 'add' } }]
    const called = { name: 'add', arguments: '{"a":1}' }
    const turn = (number: number, parent: number, ...messages: TranscriptMessage[]) => {
      return { turn: number, parent, tokens: 9, text: '', messages, tools }
    }
    const calls = turn(
      1,
      0,
      { role: 'user', content: '1?' },
      { role: 'assistant', content: '', tool_calls: [{ function: called }, { function: called }] },
    )
    const given = turn(
      2,
      1,
      { role: 'tool', content: 'one' },
      { role: 'tool', content: 'two' },
      { role: 'assistant', content: 'One.' },
    )
    const read = readSession({ turns: [stored(1, 0), stored(2, 1)], head: 2 }, [transcript(calls, given)])
    expect(read.tools).toEqual(tools)
    expect(read.said.map(({ question, results, text }) => [question, results, text])).toEqual([
      ['1?', null, ''],
      ['one\ntwo', ['one', 'two'], 'One.'],
    ])
    expect(read.said[0]!.toolCalls).toEqual([
      { index: 0, ...called },
      { index: 1, ...called },
    ])
  })

  test('of a raw text, or without text, still has its states', () => {
    const raw = { turn: 1, parent: 0, tokens: 3, text: 'The cat', messages: null }
    const read = readSession({ turns: [stored(1, 0), stored(2, 1)], head: 2 }, [transcript(raw)])
    expect(read.said.map(({ question, text, turn }) => [question, text, turn])).toEqual([
      [null, 'The cat', 1],
      [null, '', 2],
    ])
  })
})

describe('the list of conversations', () => {
  afterEach(() => vi.unstubAllGlobals())

  /** Of a server with these sessions, latest first. */
  async function listed(ids: readonly string[], most: number) {
    const asked: string[] = []
    vi.stubGlobal('sessionStorage', { getItem: () => null })
    vi.stubGlobal('fetch', async (path: string) => {
      asked.push(path)
      const query = new URL(path, 'http://server').searchParams
      const start = ids.indexOf(query.get('after') ?? '') + 1
      const data = ids.slice(start, start + Number(query.get('limit'))).map((id) => ({ id }))
      return new Response(JSON.stringify({ data }))
    })
    const { listConversations } = await import('../../web/src/lib/sessions.ts')
    const found = await listConversations('demo', new AbortController().signal, most)
    return { found: found.map(({ id }) => id), numAsked: asked.length }
  }
  const responses = (count: number) =>
    Array.from({ length: count }, (_, i) => `resp_${i.toString(16).padStart(32, '0')}`)

  test('has no stored responses, however many came after the conversations', async () => {
    const stored = responses(28)
    const ids = ['a', ...stored.slice(3), 'b', ...stored.slice(0, 3), 'c', 'resp_mine']
    expect(await listed(ids, 10)).toEqual({ found: ['a', 'b', 'c', 'resp_mine'], numAsked: 4 })
  })

  test('ends at its length, and where there is nothing but responses', async () => {
    expect((await listed(['a', 'b', responses(1)[0]!, 'c', 'd'], 3)).found).toEqual(['a', 'b', 'c'])
    expect(await listed(responses(5000), 200)).toEqual({ found: [], numAsked: 10 })
  })
})

test('conversations are listed by day, pinned ones first', () => {
  const now = new Date(2026, 10, 23, 12)
  const at = (id: string, hours: number): Conversation => {
    return { model: 'demo', id, updated: now.getTime() / 1000 - hours * 3600, numTurns: 1 }
  }
  const list = [at('a', 1), at('b', 13), at('c', 24 * 4), at('d', 24 * 40), at('e', 2)]
  const groups = byPeriod(list, ({ id }) => id === 'e', now)
  expect(groups.map(([period, some]) => [period, some.map(({ id }) => id)])).toEqual([
    ['Pinned', ['e']],
    ['Today', ['a']],
    ['Yesterday', ['b']],
    ['Last 7 days', ['c']],
    ['Older', ['d']],
  ])
})

test('as text it names the speakers', () => {
  const plain = { results: null, toolCalls: [] }
  const why = { ...plain, question: 'Why?', thought: 'Hm.\nSo.', text: 'Because.' }
  expect(asMarkdown('Why?', 'Be brief.', [why])).toBe(
    '# Why?\n\n## System\n\nBe brief.\n\n## User\n\nWhy?\n\n## Assistant\n\n> Hm.\n> So.\n\nBecause.\n',
  )
  const toolCalls = [{ index: 0, name: 'add', arguments: '{"a":1}' }]
  const calls = { question: '1?', results: null, thought: '', text: '', toolCalls }
  const given = { ...plain, question: '1', results: ['1'], thought: '', text: 'One.' }
  expect(asMarkdown('1', '', [calls, given])).toBe(
    '# 1\n\n## User\n\n1?\n\n## Assistant\n\n`add({"a":1})`\n\n## Tool\n\n1\n\n## Assistant\n\nOne.\n',
  )
})

test('a file in a message is a fence that its content cannot end; a binary file is refused', async () => {
  expect(asQuoted('a.md', '```\nx\n```\n')).toBe('a.md:\n````md\n```\nx\n```\n````')
  const file = (bytes: Uint8Array<ArrayBuffer>) => readTextFile(new File([bytes], 'a'))
  expect(await file(new TextEncoder().encode('语'))).toEqual({ text: '语' })
  expect(await file(Uint8Array.of(0xff, 0xfe))).toHaveProperty('error')
  expect(await file(Uint8Array.of(65, 0))).toHaveProperty('error')
  expect(await file(new Uint8Array(300_000))).toHaveProperty('error')
})
