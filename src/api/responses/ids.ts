/**
 * Names of responses and of what is in them. A stored response is a session of its own name, whose last turn it is; the names of
 * its items say which response they are of, so an item that a client refers to is found again.
 */

type ItemKind = 'msg' | 'rs' | 'fc' | 'call'

/** `call` is 32 hexadecimal digits. */
export function responseId(call: string): string {
  return `resp_${call}`
}

export function itemId(kind: ItemKind, response: string, index: number): string {
  return `${kind}_${response.slice('resp_'.length)}_${index}`
}

/** The response that has the item; null for a name that is none of ours. */
export function responseOfItem(item: string): string | null {
  const match = /^(?:msg|rs|fc)_([0-9a-f]{32})_\d+$/.exec(item)
  return match === null ? null : responseId(match[1]!)
}

export function isResponseId(id: string): boolean {
  return /^resp_[0-9a-f]{32}$/.test(id)
}
