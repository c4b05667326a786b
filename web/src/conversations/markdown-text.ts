/** A conversation's messages as one Markdown text. */
import type { Said } from './read-session.ts'

export function asMarkdown(
  title: string,
  system: string,
  said: readonly Pick<Said, 'question' | 'results' | 'thought' | 'text' | 'toolCalls'>[],
): string {
  const parts = [`# ${title}`]
  if (system !== '') parts.push(`## System\n\n${system}`)
  for (const { question, results, thought, text, toolCalls } of said) {
    if (results !== null) parts.push(...results.map((one) => `## Tool\n\n${one}`))
    else if (question !== null) parts.push(`## User\n\n${question}`)
    const answer = [
      ...(thought === '' ? [] : [`> ${thought.replaceAll('\n', '\n> ')}`]),
      ...(text === '' ? [] : [text]),
      ...toolCalls.map((one) => `\`${one.name}(${one.arguments})\``),
    ]
    if (answer.length > 0) parts.push(`## Assistant\n\n${answer.join('\n\n')}`)
  }
  return `${parts.join('\n\n')}\n`
}
