/** Which page the address names: `#/workers/wkr-1` is page "workers" with the argument "wkr-1"; more may follow it. */
import { signal } from '@preact/signals'

export const PAGES = [
  'home',
  'playground',
  'translate',
  'batch',
  'models',
  'workers',
  'overview',
  'machines',
  'sessions',
  'requests',
  'keys',
  'api',
  'docs',
  'settings',
] as const
export type Page = (typeof PAGES)[number]

/** Before the token of a link to somebody's conversation, where else a session's name stands. */
export const SHARED = 'shared:'

export interface Route {
  readonly page: Page
  readonly argument: string | null
  /** What stands behind the argument. */
  readonly rest: readonly string[]
}

export function parseRoute(hash: string): Route {
  const [name = '', ...parts] = hash.replace(/^#?\/?/, '').split('/')
  const page = PAGES.find((candidate) => candidate === name) ?? 'home'
  const [argument = '', ...rest] = parts.map(decode)
  return { page, argument: argument === '' ? null : argument, rest }
}

export function hashOf(page: Page, ...parts: readonly (string | number | null)[]): string {
  const given = parts.filter((part) => part !== null)
  return ['#', page, ...given.map(encodeURIComponent)].join('/')
}

/** A malformed escape is taken as it is. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

export const route = signal<Route>({ page: 'home', argument: null, rest: [] })

export function followAddress(): void {
  const read = () => {
    route.value = parseRoute(location.hash)
  }
  addEventListener('hashchange', read)
  read()
}

export function goTo(page: Page, ...parts: readonly (string | number | null)[]): void {
  location.hash = hashOf(page, ...parts)
}

/** Says where the reader is, without a way back to where they were, and without opening anything. */
export function standAt(page: Page, ...parts: readonly (string | number | null)[]): void {
  const hash = hashOf(page, ...parts)
  history.replaceState(null, '', hash)
  route.value = parseRoute(hash)
}
