/** llama.cpp's grammars in the words of the grammar engine, which knows no "." and no "-" in names. */

/** Strings, sets and comments as they are; names, and dots. */
const PARTS = /"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[A-Za-z][A-Za-z0-9_-]*|\./g
const ANY = '[\\u0001-\\U0010FFFF]'

export function fromGbnf(grammar: string): string {
  return grammar.replaceAll(PARTS, (part) => {
    if (part === '.') return ANY
    return /^[A-Za-z]/.test(part) ? part.replaceAll('-', '_') : part
  })
}
