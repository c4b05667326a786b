/** What was said as one Markdown text. */
import type { Said } from './read-session.ts'

export function asMarkdown(
  title: string,
  system: string,
  said: readonly Pick<Said, 'question' | 'thought' | 'text'>[],
): string {
  const parts = [`# ${title}`]
  if (system !== '') parts.push(`## System\n\n${system}`)
  for (const { question, thought, text } of said) {
    if (question !== null) parts.push(`## User\n\n${question}`)
    const quoted = thought === '' ? '' : `> ${thought.replaceAll('\n', '\n> ')}\n\n`
    if (text !== '' || thought !== '') parts.push(`## Assistant\n\n${quoted}${text}`)
  }
  return `${parts.join('\n\n')}\n`
}
