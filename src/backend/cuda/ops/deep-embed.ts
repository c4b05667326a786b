/**
 * DeepEmbed of RWKV-7a on cuda. One kernel reads the matrices of the tokens, from the host's memory; another scales the
 * channels, with many blocks for a token.
 */
import { assert } from '../../../errors.ts'
import type { DeepEmbedWeights, Tensor } from '../../backend.ts'
import type { Capacity } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import { SOURCE_CODES } from '../source-rows.ts'
import type { Command } from '../step/command.ts'
import { hostTableOf, tensorOf } from '../step/operands.ts'

const THREADS = 256
/** Channels of a thread. */
const CHANNELS_EACH = 4

export function deepEmbed(
  device: CudaDevice,
  { tokens: most }: Capacity,
  u: Tensor,
  low: Tensor,
  own: Tensor,
  { s_emb, s2, s0 }: DeepEmbedWeights,
  scratch: (count: number) => DevicePointer,
): Command {
  const { columns, type, address } = hostTableOf(s_emb)
  const SIDE = Math.sqrt(columns)
  const channels = s0.shape[0]!
  assert(SIDE % 8 === 0 && SIDE <= 64, `a DeepEmbed matrix of ${SIDE} rows: 8, 16, … 64 expected`)
  assert(channels % CHANNELS_EACH === 0, `${channels} channels, expected a multiple of 4`)
  const defines = { SIDE, TABLE_TYPE: SOURCE_CODES[type] }
  const multiply = device.kernel('deep-embed', 'deep_embed_multiply', defines)
  const scale = device.kernel('deep-embed', 'deep_embed_scale', defines)
  const by = scratch(most * SIDE)
  const operands = [tensorOf(low, 'f16', most * SIDE), tensorOf(own, 'f16', most * columns)] as const
  const factors = [tensorOf(s2, 'f32', SIDE * channels), tensorOf(s0, 'f32', channels)] as const
  const scaled = tensorOf(u, 'f16', most * channels)
  const sites = { multiply: {}, scale: {} }
  const blocks = Math.ceil(channels / (CHANNELS_EACH * THREADS))
  return {
    run(stream, { tokens }) {
      stream.launch(sites.multiply, multiply, [tokens, 1, 1], THREADS, () => [by, ...operands, address])
      stream.launch(sites.scale, scale, [tokens, blocks, 1], THREADS, () => [scaled, by, ...factors, i32(channels)])
    },
  }
}
