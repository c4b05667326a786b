/**
 * The types of the management API: the shapes of `/api/*` that the server writes and the dashboard reads. Fields that
 * Albatross's control plane also has keep its names. There is no code here. `web/` imports only this file and
 * `sampling.ts`. Times are seconds since 1970 (floats), sizes bytes, durations milliseconds, unless the name says
 * otherwise.
 */
import type { ProposerName, WireStatesNow } from '../engine/stats.ts'

/** As in Albatross: the process exists, or has ended. */
type WorkerStatus = 'running' | 'exited'

/** What a running worker does, or why an ended one ended. */
export type WorkerPhase =
  /** Reads its checkpoint. */
  | 'loading'
  /** Has answered a request with a token. */
  | 'ready'
  /** Died, and is about to be restarted. */
  | 'restarting'
  /** Takes no new requests and finishes those it has. */
  | 'draining'
  /** Was told to stop. */
  | 'stopped'
  /** Given up because it cannot load or crashed too often. */
  | 'failed'

/** The configuration of a worker. Albatross's fields come first. Absent or null: the server's default. */
export interface WorkerSpec {
  /** A checkpoint, with or without its extension, or the name of a pulled model; relative to the model folder. */
  readonly model_path: string
  readonly tokenizer_path: string | null
  /** Short for device "cuda:N". */
  readonly gpu_id: number | null
  /** Address of the worker's own port; only with `port`. */
  readonly host: string
  /** A port that serves only this worker; null: it is reached only through this server. */
  readonly port: number | null
  /** Sequences that run at once. */
  readonly max_batch_size: number | null
  /** Prompts that are read at once. */
  readonly max_prefill_batch: number | null
  readonly max_queue_size: number | null
  /** Prompt tokens per step. */
  readonly prefill_chunk_size: number | null
  readonly use_cuda_graph: boolean | null
  /** Name in the API; default: that of the file. Workers of the same name are replicas: requests go to any of them. */
  readonly model_name: string | null
  readonly aliases: readonly string[]
  /** auto, cpu, cuda:N, cuda:UUID, reference */
  readonly device: string | null
  /** GPUs that the layers of the model are split over, by index and in order. */
  readonly pp_devices: readonly number[] | null
  /** Weight format: file, f32, f16, bf16, int8, q4, nf4, fp8. */
  readonly quant: string | null
  /** Recurrent states on a GPU: fp32 or fp16. */
  readonly wkv: string | null
  /** Format of tool definitions and calls that the model was trained on: g1 or vllm-rwkv. */
  readonly tool_template: string | null
  /** Speculative decoding: off, prediction or lookup. */
  readonly speculate: string | null
  /** Draft model for speculative decoding, with the same vocabulary; named like model_path. */
  readonly draft_path: string | null
  readonly threads: number | null
  /** Tuned start states. */
  readonly states: readonly { readonly name: string; readonly path: string }[]
}

/** What a ready worker reports of its checkpoint. */
export interface WorkerInfo {
  readonly architecture: string
  readonly num_parameters: number
  readonly weight_type: string
  readonly weight_bytes: number
  /** "cuda:0 NVIDIA H200 (9.0, 132 SMs, 140 GiB)" */
  readonly device: string
  readonly slots: number
  readonly state_bytes: number
  readonly max_prompt_tokens: number
}

/** GET /api/workers is a bare array of these, in order of creation. */
export interface WorkerRecord {
  /** "wkr-" and ten hexadecimal digits. */
  readonly worker_id: string
  /** Name in the API. */
  readonly model: string
  readonly pid: number | null
  readonly status: WorkerStatus
  readonly phase: WorkerPhase
  /** Why it is not ready, for people; null if it is. */
  readonly reason: string | null
  /** Only while it loads. */
  readonly progress: { readonly done_bytes: number; readonly total_bytes: number } | null
  readonly created_at: number
  readonly ready_at: number | null
  readonly exited_at: number | null
  readonly exit_code: number | null
  /** Restarts after crashes. */
  readonly restarts: number
  /** Base URL of its OpenAI API: "http://127.0.0.1:9000/api/workers/wkr-…/proxy", or that of its own port. */
  readonly endpoint: string
  readonly spec: WorkerSpec
  readonly info: WorkerInfo | null
  /** The last lines of output of an ended worker. */
  readonly last_log: readonly string[]
}

export interface GpuInfo {
  readonly index: number
  readonly uuid: string | null
  readonly name: string
  readonly memory_total_mb: number
  readonly memory_used_mb: number
  /** Percent; null if nvidia-smi does not report it. */
  readonly utilisation: number | null
  readonly temperature_c: number | null
  readonly power_w: number | null
}

export interface SystemInfo {
  readonly skein: { readonly version: string; readonly uptime_ms: number; readonly url: string }
  readonly node: { readonly version: string }
  /** Albatross has Python here. Kept for its dashboards, with the runtime of this server. */
  readonly python: { readonly version: string; readonly executable: string }
  readonly os: { readonly platform: string; readonly machine: string; readonly hostname: string }
  readonly env: { readonly CUDA_VISIBLE_DEVICES: string | null }
  readonly cpu: { readonly model: string; readonly cores: number; readonly use: number }
  readonly memory: { readonly total_bytes: number; readonly available_bytes: number }
  readonly gpus: readonly GpuInfo[]
  /** Devices that a worker can be started on: "cpu", "cuda:0", … */
  readonly devices: readonly string[]
}

/** A checkpoint that a worker can be started with. GET /api/models → { models: ModelFile[] } */
export interface ModelFile {
  /** A value for model_path. */
  readonly path: string
  readonly bytes: number
  readonly modified_at: number
  /** In the model folder, among the pulled models, or the demo model of the package. */
  readonly source: 'folder' | 'pulled' | 'bundled'
}

/** POST /api/models/quantise: quantises a checkpoint into a file among the pulled ones. */
export interface ModelQuantisation {
  readonly model_path: string
  readonly quant: 'int8' | 'q4' | 'nf4'
}

/** A requested download or quantisation. GET /api/models/pulls → { pulls: PullRecord[] }, newest first. */
export interface PullRecord {
  readonly id: string
  readonly kind: 'fetch' | 'quantise'
  /** As it was requested: "rwkv7-g1-0.4b", "owner/repository:file"; "demo.pth int8" */
  readonly name: string
  readonly state: 'running' | 'done' | 'failed'
  /** The file that is being written; null before and after. */
  readonly file: string | null
  readonly done_bytes: number
  readonly total_bytes: number
  /** Why it failed, for people. */
  readonly reason: string | null
  readonly started_at: number
  readonly ended_at: number | null
}

/** GET /api/models/hub?search=rwkv7 → { repositories: HubRepository[] }, most downloaded first. */
export interface HubRepository {
  /** owner/name */
  readonly name: string
  readonly downloads: number
  readonly likes: number
  /** The owner must grant access on request. */
  readonly is_gated: boolean
}

/** GET /api/models/hub/files?repository=owner/name → { models: HubModel[] }, smallest first. */
export interface HubModel {
  /** In the form that POST /api/models/pulls takes. */
  readonly name: string
  /** Path in the repository; '': the whole repository is one model. */
  readonly file: string
  readonly bytes: number
}

/** GET /api/workers/{id}/logs?tail=200; oldest first. */
export interface WorkerLogs {
  readonly worker_id: string
  readonly lines: readonly string[]
}

/** Over the last ten seconds; null without values. */
export interface Percentiles {
  readonly p50: number | null
  readonly p90: number | null
  readonly p99: number | null
}

/** Figures of one worker; rates are over the last second. */
interface GuessRates {
  readonly guessed_per_second: number
  readonly accepted_per_second: number
}

export interface WorkerSample {
  readonly running: number
  readonly waiting: number
  readonly slots: number
  readonly free_slots: number
  readonly batch_tokens: number
  readonly prompt_tokens_per_second: number
  readonly generated_tokens_per_second: number
  /** Guessed tokens and those of them that were accepted, by proposer. */
  readonly guesses: Readonly<Record<ProposerName, GuessRates>>
  /** Share of the last second that was spent in steps, 0 … 1. */
  readonly busy: number
  readonly rss_bytes: number | null
  /** Absent if no states are kept. */
  readonly states:
    | (WireStatesNow & {
        /** Over the last second. */
        readonly cached_tokens_per_second: number
        /** Share of prompts of the last ten seconds that started from a cached prefix; null without prompts. */
        readonly prefix_hit_rate: number | null
      })
    | null
}

export interface Sample {
  readonly at: number
  readonly workers: Readonly<Record<string, WorkerSample>>
  readonly requests: { readonly open: number; readonly per_second: number; readonly errors_per_second: number }
  readonly ttft_ms: Percentiles
  readonly itl_ms: Percentiles
  readonly event_loop_delay_ms: Percentiles
  readonly cpu_use: number
  readonly memory_available_bytes: number
  readonly gpus: readonly GpuInfo[]
}

/**
 * GET /api/events (server-sent events): `event:` is the type and `data:` the other fields. `hello` comes first, then
 * every change of a worker and one `sample` per second. GET /api/workers/{id}/logs/stream sends `log` events, starting
 * `?tail=` lines back.
 */
export type ManagementEvent =
  | {
      readonly type: 'hello'
      readonly system: SystemInfo
      readonly workers: readonly WorkerRecord[]
      /** Up to ten minutes of samples, oldest first, so that charts start filled. */
      readonly history: readonly Sample[]
    }
  | { readonly type: 'worker'; readonly worker: WorkerRecord }
  | { readonly type: 'sample'; readonly sample: Sample }
  | { readonly type: 'log'; readonly worker_id: string; readonly line: string }

/** The limits of one key; null: no limit of its own. */
export interface WireLimits {
  readonly requests_per_minute: number | null
  readonly tokens_per_minute: number | null
  readonly rows: number | null
  readonly stored_bytes: number | null
  readonly share: number | null
  readonly priority: number | null
  /** Seconds. */
  readonly timeout: number | null
}

/** GET /v1/me: the caller's own key. On a server without keys, all callers share one. */
export interface OwnKey {
  readonly object: 'key'
  readonly name: string
  readonly role: 'user' | 'operator' | 'admin'
  readonly expires_at: number | null
  readonly limits: WireLimits
  /** Current use of what is limited; null for the rest, which is not counted. */
  readonly use: {
    readonly requests_left: number | null
    readonly tokens_left: number | null
    readonly rows: number | null
    readonly stored_bytes: number | null
  }
}

/** GET /api/cluster of a gateway. */
export interface ClusterInfo {
  /** Counts of this gateway since its start. */
  readonly requests: {
    readonly forwarded: number
    /** Sent to another node because one had no answer. */
    readonly retried: number
    /** Sessions that were on another node than this gateway tried first. */
    readonly misdirected: number
    /** Requests whose node stopped answering midway. */
    readonly lost: number
  }
  readonly nodes: readonly {
    readonly node: string
    readonly url: string
    /** It is draining or was unreachable a moment ago, so requests skip it. */
    readonly is_passed_by: boolean
    readonly workers: readonly {
      readonly id: string
      readonly model: string
      readonly slots: number
      readonly in_flight: number
      /** Number of sessions that it holds now. */
      readonly sessions: number
      /** By the database's clock, at the last query. */
      readonly lease_left_ms: number
      /** Its device, as it reports it: "cuda: NVIDIA H200 …", "cpu: avx512 …". */
      readonly device: string | null
      /** Version of Skein. */
      readonly version: string | null
    }[]
  }[]
  readonly moves: {
    /** By all gateways and nodes since the cluster was created. */
    readonly count: number
    /** Newest first. */
    readonly latest: readonly ClusterMove[]
  }
}

/** A session whose state moved from one worker to another. */
export interface ClusterMove {
  /** Milliseconds since 1970, by the database's clock. */
  readonly at: number
  readonly session: string
  readonly from: { readonly node: string; readonly worker: string }
  readonly to: { readonly node: string; readonly worker: string }
  /** From memory to memory, not through the storage. */
  readonly is_direct: boolean
  /** Time from the first request for the state until it was complete. */
  readonly ms: number
}

/** A request that has ended, without any of its text. */
export interface RequestRecord {
  /** Counts up. */
  readonly id: number
  /** When it arrived, in seconds since 1970. */
  readonly at: number
  readonly ms: number
  readonly method: string
  /** The route's pattern, "/v1/sessions/:id"; null if there is no such route. */
  readonly route: string | null
  /** Null if nothing was sent. */
  readonly status: number | null
  /** The client disconnected or was dropped. */
  readonly cut_off: boolean
  /** Code of the error, including one that ended a stream. */
  readonly error: string | null
  /** Name of the key; null if none was known. */
  readonly key: string | null
  readonly model: string | null
  /** Whole prompts, including tokens that came from a cached state. */
  readonly prompt_tokens: number
  readonly answer_tokens: number
  readonly first_token_ms: number | null
}

/** The body of every error of /api: `detail` is for people, `field` names a wrong field of the body. */
export interface ManagementError {
  readonly detail: string
  readonly code: string
  readonly field: string | null
}
