/** The languages whose code is coloured; loaded with the first code that names one. */
import type { Root } from 'hast'
import { common, createLowlight } from 'lowlight'

const lowlight = createLowlight(common)

export function colour(text: string, language: string): Root | null {
  return lowlight.registered(language) ? lowlight.highlight(language, text) : null
}
