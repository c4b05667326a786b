/** Runs messages that begin with a slash. */
import { SkeinError } from '../../errors.ts'
import { closest } from '../../files/closest.ts'
import { type Conversation, readJson } from './conversation.ts'

export interface Talk {
  readonly conversation: Conversation
  model: string | undefined
  tools: readonly unknown[]
  isThinking: boolean
  /** Prints a message that is no part of the conversation. */
  readonly say: (message: string) => void
  models(): Promise<readonly string[]>
  ask(question: string): Promise<void>
  leave(): void
}

interface SlashCommand {
  /** Its argument, for help. */
  readonly hint?: string
  readonly about: string
  readonly aliases?: readonly string[]
  run(talk: Talk, rest: string): void | Promise<void>
}

const COMMANDS: Readonly<Record<string, SlashCommand>> = {
  '/help': { about: 'show this list', aliases: ['/?', '/h'], run: (talk) => talk.say(helpText()) },
  '/regenerate': {
    about: 'answer the last question again',
    aliases: ['/again', '/retry'],
    async run(talk) {
      const { conversation } = talk
      const { messages } = conversation
      const question = lastQuestion(talk)
      const before = conversation.messages
      await talk.ask(question)
      // The model gave no answer.
      if (conversation.messages === before) conversation.messages = messages
    },
  },
  '/undo': {
    about: 'remove the last question and its answer',
    run(talk) {
      talk.say(`taken back: ${lastQuestion(talk).split('\n', 1)[0]}`)
    },
  },
  '/fork': {
    hint: '[NAME]',
    about: 'start a branch; the old one keeps the conversation so far',
    run({ conversation, say }, name) {
      const old = conversation.branch
      const made = conversation.fork(name === '' ? undefined : name)
      if (made === null) throw complaint(`there is a branch ${name}; /branch ${name} goes there`)
      say(`this is ${made}; /branch ${old} goes back`)
    },
  },
  '/branch': {
    hint: '[NAME]',
    about: 'switch to a branch; without a name: list them',
    run({ conversation, say }, name) {
      if (name !== '' && !conversation.go(name)) throw complaint(`no branch ${name}; /branch lists them`)
      say(
        conversation.branches
          .map(([one, turns]) => `${one === conversation.branch ? '*' : ' '} ${one}  ${turnsOf(turns)}`)
          .join('\n'),
      )
    },
  },
  '/save': {
    hint: 'FILE',
    about: 'save the conversation as JSON, or as Markdown if FILE ends in .md',
    run({ conversation, say }, path) {
      conversation.save(named(path, '/save'))
      say(`written to ${path}`)
    },
  },
  '/load': {
    hint: 'FILE',
    about: 'continue a conversation that was saved as JSON',
    run({ conversation, say }, path) {
      conversation.load(named(path, '/load'))
      say(`${turnsOf(conversation.branches[0]![1])} from ${path}`)
    },
  },
  '/model': {
    hint: '[NAME]',
    about: 'switch to another model of the server; without a name: list them',
    async run(talk, name) {
      const names = await talk.models()
      if (name === '')
        return talk.say(names.map((one) => `${one === (talk.model ?? names[0]) ? '*' : ' '} ${one}`).join('\n'))
      if (!names.includes(name)) throw complaint(notOne(name, names))
      talk.model = name
      talk.say(`this is ${name}`)
    },
  },
  '/system': {
    hint: '[TEXT]',
    about: 'set the system prompt and start over; without a text: remove it',
    run({ conversation, say }, text) {
      conversation.reset()
      conversation.system = text
      say(text === '' ? 'no system text' : `system text: ${text}`)
    },
  },
  '/tools': {
    hint: '[FILE]',
    about: 'give the model the tools of a JSON file and type their results yourself; without a file: remove them',
    run(talk, path) {
      talk.tools = path === '' ? [] : toolsOf(path)
      talk.say(path === '' ? 'no tools' : `tools: ${talk.tools.map(toolName).join(', ')}`)
    },
  },
  '/think': {
    about: 'turn thinking before the answer on or off',
    run(talk) {
      talk.isThinking = !talk.isThinking
      talk.say(talk.isThinking ? 'thinking first' : 'not thinking first')
    },
  },
  '/reset': {
    about: 'forget the conversation',
    aliases: ['/clear', '/new'],
    run({ conversation, say }) {
      conversation.reset()
      say('forgotten')
    },
  },
  '/exit': { about: 'leave (also Ctrl-D)', aliases: ['/quit', '/bye'], run: (talk) => talk.leave() },
}

export async function runSlashCommand(talk: Talk, line: string): Promise<void> {
  const [, name = '', rest = ''] = /^(\S+)\s*(.*)$/s.exec(line) ?? []
  const found = Object.entries(COMMANDS).find(([own, { aliases = [] }]) => own === name || aliases.includes(name))
  if (found === undefined) throw complaint(unknown(name))
  await found[1].run(talk, rest.trim())
}

function unknown(name: string): string {
  const names = Object.entries(COMMANDS).flatMap(([own, { aliases = [] }]) => [own, ...aliases])
  // Names may be abbreviated.
  const meant = names.find((one) => name.length > 2 && one.startsWith(name)) ?? closest(name, names)
  const hint = meant === null ? '' : `; did you mean ${meant}?`
  return `no command ${name}${hint || '; /help lists them'}`
}

function helpText(): string {
  const lines = Object.entries(COMMANDS).map(([name, { hint = '', about }]) => [`${name} ${hint}`.trim(), about])
  const width = Math.max(...lines.map(([left]) => left!.length)) + 2
  return [
    ...lines.map(([left, about]) => `${left!.padEnd(width)}${about}`),
    `${'"""'.padEnd(width)}begins and ends a text of several lines; Alt+Enter begins one more`,
    `${'Ctrl-C'.padEnd(width)}stops an answer, else clears what is typed, else leaves`,
  ].join('\n')
}

function turnsOf(count: number): string {
  return count === 1 ? '1 turn' : `${count} turns`
}

/** Removes the last question from the conversation and returns it. */
function lastQuestion({ conversation }: Talk): string {
  const question = conversation.undo()
  if (question === null) throw complaint('nothing has been asked yet')
  return question
}

function notOne(name: string, names: readonly string[]): string {
  const meant = closest(name, names)
  return `no model ${name}${meant === null ? '; /model lists them' : `; did you mean ${meant}?`}`
}

function named(path: string, command: string): string {
  if (path === '') throw complaint(`${command} needs a file: ${command} talk.json`)
  return path
}

/** Reads a list in the format of the API's field `tools`, or a body that has this field. */
function toolsOf(path: string): readonly unknown[] {
  const read = readJson(path)
  const tools: unknown = typeof read === 'object' && read !== null && 'tools' in read ? read.tools : read
  if (!Array.isArray(tools) || tools.length === 0)
    throw complaint(`${path} is no list of tools as the API's field "tools" takes them`)
  return tools
}

function toolName(tool: unknown): string {
  // The server reports what is wrong with other shapes.
  return (tool as { readonly function?: { readonly name?: string } }).function?.name ?? '?'
}

function complaint(message: string): SkeinError {
  return new SkeinError('invalid_request', message)
}
