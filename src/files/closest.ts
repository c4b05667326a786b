/** Suggests a known name for a misspelt one. */

/** The name that differs by at most two letters, or only by `_`, `-` and capitals. */
export function closest(name: string, names: readonly string[]): string | null {
  const plain = (text: string) => text.toLowerCase().replaceAll(/[_-]/g, '')
  const near = names.find((one) => plain(one) === plain(name))
  if (near !== undefined) return near
  if (name.length > 40) return null
  const most = name.length < 6 ? 1 : 2
  const [nearest] = names
    .map((one) => ({ one, letters: distance(name, one) }))
    .filter(({ letters }) => letters <= most)
    .sort((a, b) => a.letters - b.letters)
  return nearest?.one ?? null
}

/** Number of letters to insert, delete, replace or swap with a neighbour. */
export function distance(a: string, b: string): number {
  let before: number[] = []
  let row = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const change = a[i - 1] === b[j - 1] ? 0 : 1
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]
      const least = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + change)
      next.push(swapped ? Math.min(least, before[j - 2]! + 1) : least)
    }
    before = row
    row = next
  }
  return row[b.length]!
}
