/** The body of POST /api/workers/start: Albatross's fields with its ranges, then ours. Null and absent mean the default. */

import { BoundedInteger, Matching, Maybe, OneOf } from '../../api/schema.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { WorkerSpec } from '../contract.ts'
import { DEFAULT_SPEC } from '../fleet/launch.ts'

/** A name that can stand in a request, a list and a log; "@" separates start states. */
const ModelName = Matching(
  '^[^\\u0000-\\u001f\\u007f@]{1,128}$',
  '1 to 128 characters, none of them "@" or a control character',
)
/** What the engine takes as one. */
const StateName = Matching(
  '^(?! )[^@\\p{C}]{1,64}(?<! )$',
  '1 to 64 characters, none of them "@", and no space at either end',
)
const Path = Type.String({ minLength: 1, maxLength: 1024 })
const Word = Type.String({ minLength: 1, maxLength: 64 })
const GpuIndex = BoundedInteger(0, 1023)

export const specBody = Type.Object(
  {
    model_path: Path,
    tokenizer_path: Maybe(Path),
    gpu_id: Maybe(GpuIndex),
    host: Maybe(Matching('^[A-Za-z0-9.:_-]{1,253}$', 'an address or a host name')),
    port: Maybe(BoundedInteger(1, 65_535)),
    max_batch_size: Maybe(BoundedInteger(1, 4096)),
    max_prefill_batch: Maybe(BoundedInteger(1, 4096)),
    max_queue_size: Maybe(BoundedInteger(1, 1_000_000)),
    prefill_chunk_size: Maybe(BoundedInteger(1, 65_536)),
    use_cuda_graph: Maybe(Type.Boolean()),
    model_name: Maybe(ModelName),
    aliases: Maybe(Type.Array(ModelName, { maxItems: 32 })),
    device: Maybe(Word),
    pp_devices: Maybe(Type.Array(GpuIndex, { minItems: 1, maxItems: 64 })),
    quant: Maybe(Word),
    wkv: Maybe(Word),
    tool_template: Maybe(Word),
    speculate: Maybe(Word),
    draft_path: Maybe(Path),
    threads: Maybe(BoundedInteger(1, 1024)),
    states: Maybe(
      Type.Array(
        OneOf(
          '{"name", "path"} of a start state',
          Type.Object({ name: StateName, path: Path }, { additionalProperties: false }),
        ),
        { maxItems: 256 },
      ),
    ),
  },
  { additionalProperties: false },
)

export function specOf(body: Static<typeof specBody>): WorkerSpec {
  const given = Object.entries(body).filter(([, value]) => value !== null)
  // The schema has exactly the fields of a spec, and null is the default.
  return { ...DEFAULT_SPEC, ...(Object.fromEntries(given) as Partial<WorkerSpec>) }
}
