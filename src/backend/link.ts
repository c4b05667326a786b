/**
 * Which way tensors take between two backends that hold parts of one model: from GPU to GPU by the driver (cuda/peer.ts),
 * from and to all others through host memory, while both wait. Knows no model.
 */
import type { Backend, Connect, Link, Tensor } from './backend.ts'
import type { CudaBackend } from './cuda/cuda.ts'
import { PeerLink } from './cuda/peer.ts'
import { copyValues } from './reference/tensors.ts'

export const connect: Connect = (from, to, pairs, maxFlights) =>
  isCuda(from) && isCuda(to)
    ? new PeerLink(from.device, to.device, pairs, maxFlights)
    : hostLink(from, to, pairs)

function isCuda(backend: Backend): backend is CudaBackend {
  return backend.name === 'cuda'
}

function hostLink(
  from: Backend,
  to: Backend,
  pairs: readonly (readonly [from: Tensor, to: Tensor])[],
): Link {
  const areExact = from.name === 'reference' && to.name === 'reference'
  return {
    send(rows) {
      for (const [source, target] of pairs) {
        const count = rows * (source.shape[1] ?? 1)
        // In f64, which the way through f32 would round.
        if (areExact) copyValues(target, source, count)
        else to.writeTensor(target, from.readTensor(source, 0, count).result())
      }
    },
    dispose() {},
  }
}
