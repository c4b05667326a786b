/**
 * Which page the address names: `#/workers/wkr-1` is page "workers" with the argument "wkr-1". More parts may follow, and
 * `#heading` names a place in the page.
 */
import { signal } from '@preact/signals'

const PAGES = [
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

/** Stands before the token of a shared conversation, in the place of a session's name. */
export const SHARED = 'shared:'

export interface Route {
  readonly page: Page
  readonly argument: string | null
  /** The parts after the argument. */
  readonly rest: readonly string[]
  /** A heading of the page. */
  readonly anchor: string | null
}

export function parseRoute(hash: string): Route {
  const [path = '', anchor = null] = hash.replace(/^#?\/?/, '').split('#')
  const [name, ...parts] = path.split('/')
  const page = PAGES.find((candidate) => candidate === name) ?? 'home'
  const [argument = '', ...rest] = parts.map(decode)
  return { page, argument: argument === '' ? null : argument, rest, anchor: anchor === null ? null : decode(anchor) }
}

export function hashOf(page: Page, ...parts: readonly (string | number | null)[]): string {
  const given = parts.filter((part) => part !== null)
  return ['#', page, ...given.map(encodeURIComponent)].join('/')
}

/** Returns text with a malformed escape unchanged. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

export const route = signal<Route>({ page: 'home', argument: null, rest: [], anchor: null })

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

/** Changes the address without a step in the browser's history and without opening anything. */
export function standAt(page: Page, ...parts: readonly (string | number | null)[]): void {
  const hash = hashOf(page, ...parts)
  history.replaceState(null, '', hash)
  route.value = parseRoute(hash)
}
