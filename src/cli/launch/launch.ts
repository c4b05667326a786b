/** `skein launch`: prints the lines that connect another program to a server, or writes them to the program's file. */
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { SkeinError } from '../../errors.ts'
import { closest } from '../../files/closest.ts'
import { toggle } from '../../settings/flags.ts'
import { modelNames, NAME_FLAG, SERVER_FLAGS, serverOf } from '../remote.ts'
import { defineCommand } from '../terminal/command.ts'
import { CLIENTS, type ClientSetup } from './clients.ts'

const NAMES = Object.keys(CLIENTS)

export const launch = defineCommand({
  examples: [
    ['skein launch', 'list the programs it knows'],
    ['skein launch openai-python > hello.py', 'a program to start with'],
    ['skein launch continue --write', 'write the file of Continue, if there is none'],
  ],
  words: { client: { description: NAMES.join(', ') } },
  flags: {
    url: { ...SERVER_FLAGS.url, description: 'URL at which the program reaches the server' },
    'api-key': SERVER_FLAGS['api-key'],
    'model-name': { ...NAME_FLAG, description: 'Which of its models (default: the first)' },
    write: toggle('Write the file instead of printing it'),
  },
  async run({ args }) {
    if (args.client === undefined) return printClients()
    const setup = setupOf(args.client)
    const { url, apiKey } = serverOf(args)
    const model = args['model-name'] ?? (await modelNames({ url, apiKey }))[0]
    if (model === undefined) throw new SkeinError('not_found', `${url} has no model yet; name one with --model-name`)
    const text = setup.text({ url, model, key: apiKey ?? 'none' })
    if (args.write) write(args.client, setup, text)
    else print(setup, text)
  },
})

function setupOf(name: string): ClientSetup {
  const setup = Object.hasOwn(CLIENTS, name) ? CLIENTS[name] : undefined
  if (setup !== undefined) return setup
  const meant = closest(name, NAMES)
  const hint = meant === null ? `one of ${NAMES.join(', ')}` : `did you mean ${meant}?`
  throw new SkeinError('invalid_request', `no client "${name}"; ${hint}`)
}

function printClients(): void {
  const width = Math.max(...NAMES.map((name) => name.length)) + 2
  for (const [name, { about, file }] of Object.entries(CLIENTS))
    process.stdout.write(`${name.padEnd(width)}${about}${file ? ` (${file})` : ''}\n`)
}

/** Remarks go to standard error, so that standard output can be sent to a file. */
function print({ file, next }: ClientSetup, text: string): void {
  if (file !== undefined) process.stderr.write(`for ${file}:\n`)
  process.stdout.write(text)
  if (next !== undefined) process.stderr.write(`${next}\n`)
}

/** Never overwrites a file, which may say more than this. */
function write(name: string, { file, next }: ClientSetup, text: string): void {
  if (file === undefined) throw new SkeinError('invalid_request', `${name} has no file to write; leave --write out`)
  const path = file.startsWith('~/') ? join(homedir(), file.slice(2)) : file
  if (existsSync(path))
    throw new SkeinError('conflict', `${path} exists; without --write the lines are printed, to be added there`)
  mkdirSync(dirname(path), { recursive: true })
  // The file may contain a key.
  writeFileSync(path, text, { mode: 0o600 })
  process.stdout.write(`${path}\n`)
  if (next !== undefined) process.stderr.write(`${next}\n`)
}
