// A worker process that speaks the engine's protocol and behaves as its arguments say:
//   node fake-worker.mjs <mode> [file]
// serve: answers "ok" to every request, for ever · hang: is ready, then takes work and makes no step
// crash-once: dies on its first start (remembered in `file`) · crash: dies while loading · fatal: cannot load
// fatal-deaf: cannot load, and goes on living · full-disk: cannot open its store · no-descriptors: cannot open a file
// busy: is ready, and computes from then on without looking at anything
// hold-once: on its first start, takes requests and answers none · load-for-ever: never gets ready
// deaf: ignores being asked and told to stop
// lost-gpu: the prompt "A" breaks it: it says so, closes its channel and does not end · sick: fails every request but its first · saving: takes a second to save its states, and says how many are left
import { existsSync, writeFileSync } from 'node:fs'

const [mode, file] = process.argv.slice(2)
const info = {
  model: { architecture: 'rwkv7', vocabSize: 257, fingerprint: 'feed' },
  numSlots: 4,
  maxWaiting: 4,
  maxPromptTokens: 100,
}
let steps = 0

const stats = (running) => {
  const counts = { waiting: 0, running, numSlots: 4, freeSlots: 4 - running, steps }
  return mode === 'saving' ? { ...counts, states: { unsaved } } : counts
}
let unsaved = 10
const save = () => {
  unsaved--
  process.send({ type: 'step', events: [], stats: stats(0) })
  if (unsaved === 0) process.exit(0)
}
let numRequests = 0
let numHeld = 0
const isFirst = mode === 'hold-once' && !existsSync(file)
if (isFirst) writeFileSync(file, '')
const step = (events, running) => {
  steps++
  process.send({ type: 'step', events, stats: stats(running) })
}

process.on('message', (message) => {
  if (message.type === 'shutdown' && mode === 'saving') setInterval(save, 100)
  else if (message.type === 'shutdown' && mode !== 'deaf') process.exit(0)
  if (message.type === 'ping' && mode !== 'hang') {
    process.send({ type: 'step', events: [], stats: { ...stats(0), waiting: numHeld } })
  }
  if (message.type !== 'generate') return
  const { id, prompt } = message.request
  // The prompt [66] ("A" in the byte codec) kills the worker in the middle of its answer.
  const isProbe = prompt.length === 1 && prompt[0] === 0
  numRequests++
  if (mode === 'hold-once' && isFirst && !isProbe) {
    numHeld++
    process.send({ type: 'step', events: [], stats: { ...stats(0), waiting: numHeld } })
    return
  }
  if (mode === 'sick' && numRequests > 1) {
    const error = { code: 'kernel_failed', message: 'NaN in the logits' }
    step([{ type: 'error', id, error }], 0)
    return
  }
  if (mode === 'lost-gpu' && prompt[0] === 66) {
    const error = { code: 'kernel_failed', message: 'illegal address' }
    process.send({ type: 'fatal', error })
    process.send({ type: 'step', events: [{ type: 'error', id, error }], stats: null }, () => {
      process.removeAllListeners('disconnect')
      process.disconnect()
      setInterval(() => {}, 1000)
    })
    return
  }
  const isFatal = !isProbe && prompt.length === 1 && prompt[0] === 66
  if ((mode === 'hang' && !isProbe) || isFatal) {
    step([{ type: 'prompt', id, logprobs: null }], 1)
    if (isFatal) setTimeout(() => process.kill(process.pid, 'SIGABRT'), 20)
    return
  }
  step(
    [
      { type: 'prompt', id, logprobs: null },
      { type: 'text', id, index: 0, text: 'ok', tokens: [112, 108], logprobs: null },
      { type: 'finish', id, index: 0, reason: 'stop', matched: 0, completionTokens: 3 },
    ],
    0,
  )
})
process.on('disconnect', () => process.exit(0))
if (mode === 'deaf') process.on('SIGTERM', () => {})

console.error(`worker in mode ${mode}`)
process.send({ type: 'progress', doneBytes: 1, totalBytes: 4 })
if (mode === 'crash') process.exit(7)
if (mode === 'crash-once' && !existsSync(file)) {
  writeFileSync(file, '')
  process.exit(7)
}
if (mode === 'full-disk') {
  const error = { code: 'state_unavailable', message: 'a state cannot be opened: disk is full' }
  process.send({ type: 'fatal', error }, () => process.exit(1))
} else if (mode === 'no-descriptors') {
  const error = { code: 'internal', message: 'EMFILE: too many open files, open model.pth' }
  process.send({ type: 'fatal', error }, () => process.exit(1))
} else if (mode === 'full-gpu') {
  const error = { code: 'out_of_memory', message: '64 MiB of device memory asked for: the device has 0 free' }
  process.send({ type: 'fatal', error }, () => process.exit(1))
} else if (mode === 'fatal' || mode === 'fatal-deaf') {
  const error = { code: 'corrupt_weights', message: 'tensor emb.weight is cut short' }
  process.send({ type: 'fatal', error }, () => {
    if (mode === 'fatal') process.exit(1)
  })
} else if (mode === 'load-for-ever') {
  setInterval(() => {}, 1000)
} else {
  process.send({ type: 'ready', info })
}
if (mode === 'busy') {
  setTimeout(() => {
    for (const end = Date.now() + 5000; Date.now() < end; );
  }, 500)
}
