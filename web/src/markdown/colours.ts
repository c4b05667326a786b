/** The languages with syntax colours; loaded with the first code block that names one. */
import type { Root } from 'hast'
import { common, createLowlight } from 'lowlight'

const lowlight = createLowlight(common)

export function colour(text: string, language: string): Root | null {
  return lowlight.registered(language) ? lowlight.highlight(language, text) : null
}
