/** The version of this package, from its own package.json. */
import { readFileSync } from 'node:fs'

export function packageVersion(): string {
  const file = new URL('../../package.json', import.meta.url)
  // It is our own package.json.
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version
}
