/**
 * Filling in the middle, in the form that RWKV-7 G1c models were trained on: the text after the gap is told first,
 * and the model then continues the text before it. The slot named "prefix" stays empty.
 */
export function fimPrompt(prefix: string, suffix: string): string {
  return `✿prefix✿✿suffix✿${suffix}✿middle✿${prefix}`
}
