/**
 * Which tensors of a model a quantisation scheme rounds, and to what. One rule for rounding at load and for
 * `skein quantize`, so that a written file holds what loading would have made. Knows tensor names, not bytes.
 */
import { isRounded, type RoundedType, type WeightType } from '../backend/weight-types.ts'

/** The large matrices of RWKV-6 and RWKV-7: what WeightLoader.matrix loads. */
const LARGE_MATRIX =
  /^(head|blocks\.\d+\.(att\.(receptance|key|value|gate|output)|ffn\.(receptance|key|value)))\.weight$/

/**
 * The type a scheme rounds a tensor to; null for those it leaves alone: norms, mixes, low-rank factors, the embedding.
 * The head has integers of 8 bits under every scheme: its errors go into the logits undamped, and it is read once a
 * token, not once a layer.
 */
export function quantisedType<Scheme extends RoundedType>(
  name: string,
  scheme: Scheme,
): Scheme | 'i8' | null {
  if (!LARGE_MATRIX.test(name)) return null
  return name === 'head.weight' ? 'i8' : scheme
}

/** The same where the wanted type may be a plain one. */
export function heldMatrixType(name: string, wanted: WeightType): WeightType {
  return isRounded(wanted) ? (quantisedType(name, wanted) ?? wanted) : wanted
}
