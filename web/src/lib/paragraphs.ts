/** Splits a text into parts, and parts into groups. */

/** Splits at blank lines; in a text without any, at line ends. */
export function paragraphsOf(text: string): string[] {
  const separator = /\n\s*\n/.test(text) ? /\n\s*\n/ : /\n/
  return text
    .split(separator)
    .map((paragraph) => paragraph.trim())
    .filter((paragraph) => paragraph !== '')
}

/** Consecutive groups of at most `size`, with where each begins. */
export function groupsOf<T>(items: readonly T[], size: number): { at: number; items: T[] }[] {
  const groups = []
  for (let at = 0; at < items.length; at += size) {
    groups.push({ at, items: items.slice(at, at + size) })
  }
  return groups
}
