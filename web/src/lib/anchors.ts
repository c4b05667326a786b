/** Links within and between Markdown pages: to `page.md`, `page.md#heading` and `#heading`. */

/** The name by which a link finds a heading, as sites that show Markdown derive it. */
export function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-')
}

/** Replaces the target of each link to a page or a heading by what `wholeOf` returns; null leaves the link as it is. */
export function withWholeLinks(text: string, wholeOf: (target: string) => string | null): string {
  return text.replace(/\]\(((?:[\w./-]+\.md)?(?:#[^)\s]+)?)\)/g, (link, target: string) => {
    const whole = target === '' ? null : wholeOf(target)
    return whole === null ? link : `](${whole})`
  })
}
