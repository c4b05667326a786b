/** Colours of what people read in a terminal. A pipe, NO_COLOR and a terminal without colours get plain text. */
import { styleText } from 'node:util'

type Style = 'bold' | 'dim' | 'italic' | 'underline' | 'cyan' | 'green' | 'yellow' | 'red'

export type Paint = (style: Style, text: string) => string

/** https://no-color.org; Node knows what TERM, COLORTERM and FORCE_COLOR mean. */
export function hasColours(stream: Pick<NodeJS.WriteStream, 'isTTY' | 'hasColors'>): boolean {
  return stream.isTTY === true && !process.env.NO_COLOR && stream.hasColors()
}

export const plain: Paint = (_style, text) => text

// An empty text would still be wrapped in codes.
export const coloured: Paint = (style, text) =>
  text === '' ? '' : styleText(style, text, { validateStream: false })
