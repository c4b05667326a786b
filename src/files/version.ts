/** The version of this package, from its own package.json, and the one of Node that it needs. */
import { readFileSync } from 'node:fs'

export function packageVersion(): string {
  const file = new URL('../../package.json', import.meta.url)
  // It is our own package.json.
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version
}

/** What to tell whoever runs an older Node, in which most modules do not even load; else null. */
export function lackOfNode(version = process.versions.node): string | null {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  if (major > 20 || (major === 20 && minor >= 19)) return null
  return `Skein needs Node 20.19 or later, and this is ${version}; https://nodejs.org has newer ones`
}
