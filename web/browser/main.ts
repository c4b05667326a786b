/**
 * The page: a button that loads the model into a worker, and a conversation with it. A service worker caches the page,
 * so it opens without a network after the first load.
 */
import '../src/style/base.css'
import type { Asked, Told } from './messages.ts'
import './page.css'
import workerUrl from './worker.ts?worker&url'

/** Set in vite.config.ts. */
declare const MODEL_URL: string

const KEEPER_URL = '/browser/keeper.js'

/** The page's policy (CSP) allows no other text as a script's address. */
interface ScriptPolicy {
  createScriptURL(url: string): string
}
interface TrustedTypes {
  createPolicy(name: string, rules: ScriptPolicy): ScriptPolicy
}

const { trustedTypes } = globalThis as { trustedTypes?: TrustedTypes }
const scripts = trustedTypes?.createPolicy('skein-browser', {
  createScriptURL(url) {
    if (url === workerUrl || url === KEEPER_URL) return url
    throw new TypeError(`${url} is no script of this page`)
  },
})
const scriptUrl = (url: string): string => scripts?.createScriptURL(url) ?? url

function element<E extends HTMLElement>(id: string): E {
  // The ids and element types are those of index.html.
  return document.getElementById(id) as E
}

const start = element('start')
const loadButton = element<HTMLButtonElement>('load')
const progress = element<HTMLProgressElement>('progress')
const status = element('status')
const talk = element('talk')
const form = element<HTMLFormElement>('form')
const message = element<HTMLTextAreaElement>('message')
const send = element<HTMLButtonElement>('send')
const stop = element<HTMLButtonElement>('stop')
const clear = element<HTMLButtonElement>('clear')

const worker = new Worker(scriptUrl(workerUrl), { type: 'module' })
let answer: HTMLElement | null = null

function ask(asked: Asked): void {
  worker.postMessage(asked)
}

function say(text: string, isWrong = false): void {
  status.textContent = text
  status.className = isWrong ? 'wrong' : ''
}

function setBusy(isBusy: boolean): void {
  send.disabled = isBusy
  clear.disabled = isBusy
  stop.disabled = !isBusy
  answer?.setAttribute('aria-busy', String(isBusy))
}

function bubble(kind: 'asked' | 'answer', text: string): HTMLElement {
  const paragraph = document.createElement('p')
  paragraph.className = kind
  paragraph.textContent = text
  talk.append(paragraph)
  return paragraph
}

/** Between its last byte and its first weight the GPU is opened and tested, which takes seconds. */
function stageOf({ stage, done, total }: Extract<Told, { type: 'progress' }>): string {
  if (stage === 'weights') return 'Putting it onto the GPU'
  return done === total ? 'Trying the GPU' : 'Fetching the model'
}

function hear(told: Told): void {
  switch (told.type) {
    case 'progress':
      progress.value = told.total === null ? 0 : told.done / told.total
      say(stageOf(told))
      return
    case 'ready':
      start.hidden = true
      form.hidden = false
      message.focus()
      say(`${(told.parameters / 1e6).toFixed(1)} M parameters on ${told.device}`)
      return
    case 'piece':
      // The template puts a space before an answer.
      answer!.textContent = (answer!.textContent + told.text).trimStart()
      return
    case 'over':
      setBusy(false)
      say(`${told.tokens} tokens, ${(told.tokens / told.seconds).toFixed(1)} a second`)
      return
    case 'forgotten':
      say('The model is removed; this page keeps the copy that it has loaded.')
      return
    case 'failed':
      setBusy(false)
      loadButton.disabled = false
      progress.hidden = true
      say(told.message, true)
      return
  }
}

worker.addEventListener('message', ({ data }: MessageEvent<Told>) => hear(data))
worker.addEventListener('error', ({ message }) => say(message, true))

loadButton.addEventListener('click', () => {
  loadButton.disabled = true
  progress.hidden = false
  ask({ type: 'load', url: MODEL_URL })
})
form.addEventListener('submit', (event) => {
  event.preventDefault()
  const content = message.value.trim()
  if (content === '' || send.disabled) return
  bubble('asked', content)
  answer = bubble('answer', '')
  message.value = ''
  setBusy(true)
  ask({ type: 'ask', content })
})
message.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
  event.preventDefault()
  form.requestSubmit()
})
stop.addEventListener('click', () => ask({ type: 'stop' }))
clear.addEventListener('click', () => {
  talk.replaceChildren()
  ask({ type: 'clear' })
})
element('forget').addEventListener('click', () => ask({ type: 'forget' }))

/** Caches the page's own files for use without a network. */
async function keepPage(): Promise<void> {
  if (!('serviceWorker' in navigator)) return
  await navigator.serviceWorker.register(scriptUrl(KEEPER_URL), { scope: '/browser/' })
  const links = document.querySelectorAll<HTMLElement>('script[src], link[href]')
  const files = Array.from(links, (link) => link.getAttribute('src') ?? link.getAttribute('href') ?? '')
  const cache = await caches.open('skein-page')
  await cache.addAll(['/browser/', workerUrl, ...files])
  document.documentElement.dataset.kept = 'yes'
}

keepPage().catch((error: unknown) => {
  // The page works without the cache; it needs the network next time.
  console.warn(error)
})
