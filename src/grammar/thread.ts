/** Entry of a grammar thread: see matchers.ts. */
import { parentPort, workerData } from 'node:worker_threads'
import { assert } from '../errors.ts'
import { MatcherRows, type RowsOptions, type ToRows } from './matcher-rows.ts'
import { openXgrammar } from './xgrammar.ts'

assert(parentPort !== null, 'the thread of grammars was started as a process')
const port = parentPort
const options = workerData as RowsOptions // given by matchers.ts
const rows = new MatcherRows(await openXgrammar(), options, (compiled) => port.postMessage(compiled))
port.on('message', (message: ToRows) => rows.handle(message))
port.postMessage('ready')
