/** Asks a node for a state that one of its workers offers. */
import { request as ask, type IncomingMessage } from 'node:http'
import { request as askOverTls } from 'node:https'
import { CALLER_HEADER, type MemberSeal } from '../../cluster/member-seal.ts'
import { STATES_PATH } from '../../cluster/state-socket.ts'

interface OfferPlace {
  /** URL of the worker's node. */
  readonly url: string
  readonly worker: string
}

interface Wanted {
  readonly key: string
  /** Size of its numbers and tokens. */
  readonly bytes: number
  /** Longest that it may take. */
  readonly ms: number
}

/** Bytes of a file beside its numbers and tokens, at most. */
const MAX_HEADER_BYTES = 8192

/** Rejects when it is not there, is larger than `bytes` and a header, or does not come soon. */
export async function fetchOffer(
  { url, worker }: OfferPlace,
  { key, bytes, ms }: Wanted,
  seal: MemberSeal,
): Promise<Uint8Array> {
  const at = new URL(`${STATES_PATH}/${encodeURIComponent(worker)}/${encodeURIComponent(key)}`, url)
  const headers = { [CALLER_HEADER]: seal.seal({ principal: null, mayTake: false }) }
  const send = at.protocol === 'https:' ? askOverTls : ask
  const signal = AbortSignal.timeout(ms)
  const message = await new Promise<IncomingMessage>((resolve, reject) => {
    send(at, { headers, signal }).once('response', resolve).once('error', reject).end()
  })
  const size = Number(message.headers['content-length'])
  if (message.statusCode !== 200 || !(size <= bytes + MAX_HEADER_BYTES)) {
    message.destroy()
    throw new Error(`the node at ${url} answered ${message.statusCode} and ${size} bytes`)
  }
  const file = new Uint8Array(size)
  let length = 0
  for await (const part of message) {
    // Nobody has set an encoding; a body is never longer than it says.
    file.set(part as Buffer, length)
    length += (part as Buffer).length
  }
  if (length < size) throw new Error(`the state ended after ${length} of ${size} bytes`)
  return file
}
