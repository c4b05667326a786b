/** Which page the address names: `#/workers/wkr-1` is page "workers" with the argument "wkr-1". */
import { signal } from '@preact/signals'

export const PAGES = ['overview', 'workers', 'playground', 'sessions', 'translate', 'api'] as const
export type Page = (typeof PAGES)[number]

export interface Route {
  readonly page: Page
  readonly argument: string | null
}

export function parseRoute(hash: string): Route {
  const [name = '', argument = ''] = hash.replace(/^#?\/?/, '').split('/', 2)
  const page = PAGES.find((candidate) => candidate === name) ?? 'overview'
  return { page, argument: argument === '' ? null : decode(argument) }
}

export function hashOf(page: Page, argument: string | null = null): string {
  return argument === null ? `#/${page}` : `#/${page}/${encodeURIComponent(argument)}`
}

/** A malformed escape is taken as it is. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

export const route = signal<Route>({ page: 'overview', argument: null })

export function followAddress(): void {
  const read = () => {
    route.value = parseRoute(location.hash)
  }
  addEventListener('hashchange', read)
  read()
}

export function goTo(page: Page, argument: string | null = null): void {
  location.hash = hashOf(page, argument)
}
