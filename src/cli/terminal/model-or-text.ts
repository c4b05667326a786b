/** Commands whose first argument is a model and whose second is a text: one argument alone may be either. */
import { existsSync } from 'node:fs'
import { isLikeModel } from '../../host/checkpoints/model-path.ts'

interface ModelAndText {
  readonly model: string | undefined
  readonly text: string | undefined
}

export function modelAndText({ model, text }: ModelAndText): ModelAndText {
  const isText = model !== undefined && text === undefined && !existsSync(model) && isLikeText(model)
  return isText ? { model: undefined, text: model } : { model, text }
}

/** Of what is no file: it has a space or a sign that no model's name has, or is a word that is like no model's name ("hi"). */
export function isLikeText(word: string): boolean {
  if (/\s/.test(word)) return true
  if (/[/\\]|\.\w+$/.test(word)) return false
  return /[^\x21-\x7e]|[?!]/.test(word) || (/^[a-z'.,]+$/i.test(word) && !isLikeModel(word))
}
