/**
 * What the management API says, as types: the shapes of `/api/*` that the server writes and the dashboard reads. The field
 * names of Albatross's control plane are kept where it has the thing. No code. `web/` imports it and `sampling.ts`, no other file.
 * Times are seconds since 1970 (floats), sizes bytes, durations milliseconds, unless the name says otherwise.
 */
import type { ProposerName, WireStatesNow } from '../engine/stats.ts'

/** As Albatross has it: a process is there, or has ended. */
export type WorkerStatus = 'running' | 'exited'

/** What a running worker is doing, and why an ended one ended. */
export type WorkerPhase =
  /** Reading its checkpoint. */
  | 'loading'
  /** Has answered with a token. */
  | 'ready'
  /** Died, and is about to be started again. */
  | 'restarting'
  /** Takes no more requests and finishes those it has. */
  | 'draining'
  /** Ended because it was told to. */
  | 'stopped'
  /** Given up: it cannot load, or crashed too often. */
  | 'failed'

/** What a worker was asked to be. Albatross's fields, then ours. Absent or null: the server's default. */
export interface WorkerSpec {
  /** A checkpoint, with or without its extension, or the name of a pulled model; relative to the model folder. */
  readonly model_path: string
  readonly tokenizer_path: string | null
  /** Short for device "cuda:N". */
  readonly gpu_id: number | null
  /** Address of a door of its own; only with `port`. */
  readonly host: string
  /** A port that speaks to this worker alone; null: only through this server. */
  readonly port: number | null
  /** Sequences at once. */
  readonly max_batch_size: number | null
  /** Prompts read at once. */
  readonly max_prefill_batch: number | null
  readonly max_queue_size: number | null
  /** Prompt tokens of a step. */
  readonly prefill_chunk_size: number | null
  readonly use_cuda_graph: boolean | null
  /** Name in the API; default: the name of the file. Workers of one name are replicas: requests go to either. */
  readonly model_name: string | null
  readonly aliases: readonly string[]
  /** auto, cpu, cuda:N, cuda:UUID, reference */
  readonly device: string | null
  /** One model over several GPUs by layers: their indices in order. */
  readonly pp_devices: readonly number[] | null
  /** How matrices are held: file, f32, f16, bf16, int8, q4, nf4, fp8. */
  readonly quant: string | null
  /** Recurrent states on a GPU: fp32 or fp16. */
  readonly wkv: string | null
  /** How the model was taught to read of tools and to call them: g1 or vllm-rwkv. */
  readonly tool_template: string | null
  /** From what the next tokens of answers are guessed: off, prediction or lookup. */
  readonly speculate: string | null
  /** A smaller model with the same vocabulary that guesses them, too: as model_path. */
  readonly draft_path: string | null
  readonly threads: number | null
  /** Tuned start states. */
  readonly states: readonly { readonly name: string; readonly path: string }[]
}

/** What a ready worker found in its checkpoint. */
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
  /** Why it is not ready, for people; null when it is. */
  readonly reason: string | null
  /** While loading. */
  readonly progress: { readonly done_bytes: number; readonly total_bytes: number } | null
  readonly created_at: number
  readonly ready_at: number | null
  readonly exited_at: number | null
  readonly exit_code: number | null
  /** Crashes since it was started. */
  readonly restarts: number
  /** Base address of its OpenAI API: "http://127.0.0.1:9000/api/workers/wkr-…/proxy", or that of its own port. */
  readonly endpoint: string
  readonly spec: WorkerSpec
  readonly info: WorkerInfo | null
  /** Of an ended one: its last lines of output. */
  readonly last_log: readonly string[]
}

export interface GpuInfo {
  readonly index: number
  readonly uuid: string | null
  readonly name: string
  readonly memory_total_mb: number
  readonly memory_used_mb: number
  /** Percent; null where nvidia-smi does not say. */
  readonly utilisation: number | null
  readonly temperature_c: number | null
  readonly power_w: number | null
}

export interface SystemInfo {
  readonly skein: { readonly version: string; readonly uptime_ms: number; readonly url: string }
  readonly node: { readonly version: string }
  /** Albatross has Python here; kept for its dashboards, with what this server runs on. */
  readonly python: { readonly version: string; readonly executable: string }
  readonly os: { readonly platform: string; readonly machine: string; readonly hostname: string }
  readonly env: { readonly CUDA_VISIBLE_DEVICES: string | null }
  readonly cpu: { readonly model: string; readonly cores: number; readonly use: number }
  readonly memory: { readonly total_bytes: number; readonly available_bytes: number }
  readonly gpus: readonly GpuInfo[]
  /** Devices that a worker can be started on: "cpu", "cuda:0", … */
  readonly devices: readonly string[]
}

/** A checkpoint that a worker could be started with. GET /api/models → { models: ModelFile[] } */
export interface ModelFile {
  /** What model_path may be. */
  readonly path: string
  readonly bytes: number
  readonly modified_at: number
  /** Where it is: the model folder, among the pulled ones, or in the package: the demo model. */
  readonly source: 'folder' | 'pulled' | 'bundled'
}

/** POST /api/models/quantise: rounds a checkpoint once, into a file among the pulled ones. */
export interface ModelQuantisation {
  readonly model_path: string
  readonly quant: 'int8' | 'q4' | 'nf4'
}

/** A download or quantisation that was asked for. GET /api/models/pulls → { pulls: PullRecord[] }, latest first. */
export interface PullRecord {
  readonly id: string
  readonly kind: 'fetch' | 'quantise'
  /** As it was asked for: "rwkv7-g1-0.4b", "owner/repository:file"; "demo.pth int8" */
  readonly name: string
  readonly state: 'running' | 'done' | 'failed'
  /** What is being written; null before and after. */
  readonly file: string | null
  readonly done_bytes: number
  readonly total_bytes: number
  /** Why it failed, for people. */
  readonly reason: string | null
  readonly started_at: number
  readonly ended_at: number | null
}

/** GET /api/models/hub?search=rwkv7 → { repositories: HubRepository[] }, those that are fetched most often first. */
export interface HubRepository {
  /** owner/name */
  readonly name: string
  readonly downloads: number
  readonly likes: number
  /** Its owner lets in who asked for it. */
  readonly is_gated: boolean
}

/** GET /api/models/hub/files?repository=owner/name → { models: HubModel[] }, smallest first. */
export interface HubModel {
  /** As POST /api/models/pulls takes it. */
  readonly name: string
  /** Within the repository; '': all of it is one model. */
  readonly file: string
  readonly bytes: number
}

/** GET /api/workers/{id}/logs?tail=200; oldest first. */
export interface WorkerLogs {
  readonly worker_id: string
  readonly lines: readonly string[]
}

/** Of the last ten seconds; null where nothing happened. */
export interface Percentiles {
  readonly p50: number | null
  readonly p90: number | null
  readonly p99: number | null
}

/** Of one worker, now; rates are of the last second. */
export interface GuessRates {
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
  /** Tokens of answers that were guessed before they were drawn, and those of them that were drawn, by who guesses. */
  readonly guesses: Readonly<Record<ProposerName, GuessRates>>
  /** Share of the second spent inside steps, 0 … 1. */
  readonly busy: number
  readonly rss_bytes: number | null
  /** Absent where no states are kept. */
  readonly states:
    | (WireStatesNow & {
        /** Of the last second. */
        readonly cached_tokens_per_second: number
        /** Share of prompts of the last ten seconds that began at a kept prefix; null without prompts. */
        readonly prefix_hit_rate: number | null
      })
    | null
}

export interface Sample {
  readonly at: number
  readonly workers: Readonly<Record<string, WorkerSample>>
  readonly requests: {
    readonly open: number
    readonly per_second: number
    readonly errors_per_second: number
  }
  readonly ttft_ms: Percentiles
  readonly itl_ms: Percentiles
  readonly event_loop_delay_ms: Percentiles
  readonly cpu_use: number
  readonly memory_available_bytes: number
  readonly gpus: readonly GpuInfo[]
}

/**
 * GET /api/events (server-sent events): `event:` is the type and `data:` the rest. `hello` comes first, then every change
 * of a worker and a `sample` each second. GET /api/workers/{id}/logs/stream sends `log` events from `?tail=` lines ago on.
 */
export type ManagementEvent =
  | {
      readonly type: 'hello'
      readonly system: SystemInfo
      readonly workers: readonly WorkerRecord[]
      /** Up to ten minutes of samples, oldest first, so that a chart is not empty at first. */
      readonly history: readonly Sample[]
    }
  | { readonly type: 'worker'; readonly worker: WorkerRecord }
  | { readonly type: 'sample'; readonly sample: Sample }
  | { readonly type: 'log'; readonly worker_id: string; readonly line: string }

/** What one key may use; null: no bound of its own. */
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

/** GET /v1/me: the caller's own key. On a server without keys it is everyone's. */
export interface OwnKey {
  readonly object: 'key'
  readonly name: string
  readonly role: 'user' | 'operator' | 'admin'
  readonly expires_at: number | null
  readonly limits: WireLimits
  /** Of what is limited; null for the rest, which nobody counts. */
  readonly use: {
    readonly requests_left: number | null
    readonly tokens_left: number | null
    readonly rows: number | null
    readonly stored_bytes: number | null
  }
}

/** GET /api/cluster, of a front gateway. */
export interface ClusterInfo {
  /** Of this gateway since it was started. */
  readonly requests: {
    readonly forwarded: number
    readonly retried: number
    readonly misdirected: number
    readonly lost: number
  }
  readonly nodes: readonly {
    readonly node: string
    readonly url: string
    /** It drains, or could not be reached a moment ago. */
    readonly is_passed_by: boolean
    readonly workers: readonly {
      readonly id: string
      readonly model: string
      readonly slots: number
      readonly in_flight: number
      /** That it has now. */
      readonly sessions: number
      /** By the database's clock, when it was asked last. */
      readonly lease_left_ms: number
      /** What it computes on, as it says itself: "cuda: NVIDIA H200 …", "cpu: avx512 …". */
      readonly device: string | null
      /** Of Skein. */
      readonly version: string | null
    }[]
  }[]
  readonly moves: {
    /** Of all gateways and nodes, since the cluster was made. */
    readonly count: number
    /** Latest first. */
    readonly latest: readonly ClusterMove[]
  }
}

/** A session whose state went from one worker to another. */
export interface ClusterMove {
  /** Milliseconds since 1970, by the database's clock. */
  readonly at: number
  readonly session: string
  readonly from: { readonly node: string; readonly worker: string }
  readonly to: { readonly node: string; readonly worker: string }
  /** From memory to memory, not by way of the storage. */
  readonly is_direct: boolean
  /** Of the state, from the first question for it until it was whole. */
  readonly ms: number
}

/** A request that has ended, without a word of what it said. */
export interface RequestRecord {
  /** Counts up. */
  readonly id: number
  /** When it arrived, in seconds since 1970. */
  readonly at: number
  readonly ms: number
  readonly method: string
  /** The pattern, "/v1/sessions/:id"; null where there is no such route. */
  readonly route: string | null
  /** Null where nothing was sent. */
  readonly status: number | null
  /** The client left, or was dropped. */
  readonly cut_off: boolean
  /** Code of the error, also of one that ended a stream. */
  readonly error: string | null
  /** Name of the key; null where none was known. */
  readonly key: string | null
  readonly model: string | null
  /** Prompts in full, those of which states were kept too. */
  readonly prompt_tokens: number
  readonly answer_tokens: number
  readonly first_token_ms: number | null
}

/** Every error of /api: HTTP status says the kind, `detail` is for people, `field` names what was wrong with a body. */
export interface ManagementError {
  readonly detail: string
  readonly code: string
  readonly field: string | null
}
